import 'beem/backbones.libsonnet'
