(import 'beem/policies.libsonnet')['beem-c']
