"""One question a script: how fast is it, beside what?"""
