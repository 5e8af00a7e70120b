(import '../lib/policies.libsonnet').patience(2)
