"""Where metrics are written: terminal, JSON lines, TensorBoard, MLflow, memory.

Must not know: how they are computed. Open first: `jsonl.py`.
"""
