"""What SIMT devices share: kernel texts, the lowering from nodes to launches, and dialects."""
