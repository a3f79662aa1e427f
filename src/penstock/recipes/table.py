"""The recipes by name: those of penstock, and those that other packages add."""

from __future__ import annotations

from typing import Any

from penstock.registry import Registry

_OWN = {
    "text": ("c4", "enwiki", "enwiki_text", "pile"),
    "vision": ("ade20k", "cifar10", "coco", "fake_cifar10", "imagenet"),
    "multimodal": ("crawl_webvid", "crawl_webvid_subsets", "extract_webvid_videos", "laion400m"),
}

recipes: Registry[Any] = Registry(
    "recipe",
    group="penstock.recipes",
    builtin={name: f"penstock.recipes.{area}.{name}:recipe" for area, names in _OWN.items() for name in names},
)
