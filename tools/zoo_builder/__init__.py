"""The recipe of the embedded zoo, pretrained from nothing by ``cd tools; python -m zoo_builder.build``."""
