"""Looking inside a trained model's heads: maps, scores, ablation, pruning, uptraining.

Attention is routing, not an explanation: a map shows where a head's weights went, not what the model
used. What a head does for the result is asked by removing it.
"""
