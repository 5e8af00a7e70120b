(import '../lib/policies.libsonnet')['full_depth']
