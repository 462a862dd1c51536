"""Where numbers go: terminal, JSON lines, TensorBoard, MLflow, memory.

Must not know: how they are computed. Open first: `jsonl.py`.
"""
