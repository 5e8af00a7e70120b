(import 'beem/policies.libsonnet').patience(2)
