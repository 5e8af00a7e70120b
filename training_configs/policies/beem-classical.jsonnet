(import '../lib/policies.libsonnet')['beem-classical']
