(import 'beem/policies.libsonnet')['beem-classical']
