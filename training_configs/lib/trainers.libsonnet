import 'beem/trainers.libsonnet'
