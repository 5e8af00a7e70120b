(import '../lib/policies.libsonnet')['beem-a']
