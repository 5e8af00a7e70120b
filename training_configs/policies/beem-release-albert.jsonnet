(import 'beem/policies.libsonnet')['beem-release-albert']
