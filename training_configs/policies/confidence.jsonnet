(import '../lib/policies.libsonnet')['confidence-calibrated']
