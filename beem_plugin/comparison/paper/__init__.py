"""The paper's tables and figures: what is trained for them, how it is judged, how it is laid out."""
