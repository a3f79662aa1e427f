"""WebVid: fetch the videos whose captions have a word in them, a dataset for each word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import EmptyDatasetError
from penstock.recipes.base import add_flag, listed, run_module
from penstock.recipes.multimodal.crawl_webvid import CrawlWebVidRecipe

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from penstock.conversion.plan import ConvertReport


class CrawlWebVidSubsetsRecipe(CrawlWebVidRecipe):
    """WebVid by words: for each of --filters, a dataset of the videos whose captions have it in them, at any place.

    A video stands in each dataset that it fits, and is fetched for each.
    """

    name = "crawl_webvid_subsets"
    batch_size = 512  # rows, of which few have a word

    def add_places(self, parser: argparse.ArgumentParser) -> None:
        """Add where from, where to, and the words."""
        add_flag(parser, "--csv", dest="in_root", required=True, help="the CSV file")
        add_flag(parser, "--mds_root", dest="out_root", required=True, help="the folder or URL of all datasets")
        words = "plane,train,automobile,cat,dog"
        add_flag(parser, "--filters", type=listed, default=words, help="the words, each with a dataset of its name")

    def run(self, args: argparse.Namespace) -> Mapping[str, ConvertReport]:
        """Crawl one dataset after the other; words that no caption has are named at the end."""
        empty: list[str] = []
        reports: dict[str, ConvertReport] = {}
        for word in args.filters:
            args.splits = [word]
            try:
                reports.update(super().run(args))
            except EmptyDatasetError:
                empty.append(word)
        if empty:
            raise EmptyDatasetError(
                f"no video could be had for {', '.join(map(repr, empty))}: the other datasets are whole"
            )
        return reports


recipe = CrawlWebVidSubsetsRecipe()
parse_args, main = recipe.parse_args, recipe.main

if __name__ == "__main__":
    run_module(recipe.name)
