// Exits vote by log-odds; a sample leaves when the next layers are expected to buy too little accuracy. One threshold, set
// for twice the speed of the whole network.
{ type: 'expected_gain', thresholds: { type: 'budget', speedup: 2.0 } }
