(import 'beem/policies.libsonnet')['beem-a']
