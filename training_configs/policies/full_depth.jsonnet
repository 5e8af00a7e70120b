(import 'beem/policies.libsonnet')['full_depth']
