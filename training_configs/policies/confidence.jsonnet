(import 'beem/policies.libsonnet')['confidence-calibrated']
