(import '../lib/policies.libsonnet')['beem-c']
