(import '../lib/policies.libsonnet')['beem-release-albert']
