import 'beem/policies.libsonnet'
