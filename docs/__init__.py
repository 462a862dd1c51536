"""The documentation site: pages in Markdown, and the script that writes the reference."""
