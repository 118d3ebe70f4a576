"""The recipe of the built-in zoo, pretrained from nothing by ``cd tools; python -m zoo_builder.build``."""
