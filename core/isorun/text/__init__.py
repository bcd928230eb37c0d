"""Text in, vectors or scores out: sentence embeddings, rerankers and classifiers, without PyTorch."""
