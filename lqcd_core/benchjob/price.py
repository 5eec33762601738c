"""What a job can cost: price per hour from the provider's price list, times the wall clock."""

from __future__ import annotations

import json
import math

import attrs

from .account import CloudError

LIST_REGION = "us-east-1"
"""The price list service answers in few regions; this is one, for the prices of all."""


@attrs.frozen
class Estimate:
    """Upper bound of a job's cost."""

    hourly: float
    """Dollars per hour of the instance."""
    source: str
    """Where the price comes from."""
    minutes: float
    """Wall clock; 0 means that nothing bounds the time."""

    @property
    def at_most(self) -> float | None:
        """Dollars until the kill switch, which falls on whole minutes; None without one.

        >>> Estimate(3.0, "list", 120).at_most
        6.0
        """
        return self.hourly * math.ceil(self.minutes) / 60 if self.minutes else None

    def text(self) -> str:
        """One line for people.

        >>> Estimate(3.0, "given", 120).text()
        'at most 6.00 USD: 120 minutes at 3.00 USD per hour (given); disk, storage and transfer come on top, usually cents'
        """
        each = f"{self.hourly:.2f} USD per hour ({self.source})"
        rest = "; disk, storage and transfer come on top, usually cents"
        if self.at_most is None:
            return f"no upper bound, since --wall-clock 0 disables the kill switch: {each}{rest}"
        return f"at most {self.at_most:.2f} USD: {self.minutes:g} minutes at {each}{rest}"


def list_price(session, instance_type: str, region: str) -> float:
    """On-demand dollars per hour of a Linux instance on shared hardware, from the price list service.

    Raises
    ------
    CloudError
        If the list cannot be asked or holds no such price.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    wanted = {
        "instanceType": instance_type, "regionCode": region, "operatingSystem": "Linux", "tenancy": "Shared",
        "preInstalledSw": "NA", "capacitystatus": "Used",
    }  # fmt: skip
    filters = [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in wanted.items()]
    remedy = "give --hourly-price with the price that you know."
    try:
        answer = session.client("pricing", region_name=LIST_REGION).get_products(
            ServiceCode="AmazonEC2", Filters=filters
        )
    except (ClientError, BotoCoreError) as error:
        raise CloudError(f"the price list could not be asked ({error}); {remedy}") from None
    prices = {float(p) for text in answer.get("PriceList", ()) for p in _dollars(json.loads(text))}
    prices.discard(0.0)  # capacity blocks and reservations are listed at nothing
    if not prices:
        raise CloudError(
            f"the price list has no on-demand price of {instance_type!r} in {region!r}; is the type right? Or {remedy}"
        )
    return max(prices)


def _dollars(product: dict):
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            if dimension.get("unit") == "Hrs" and "USD" in dimension.get("pricePerUnit", {}):
                yield dimension["pricePerUnit"]["USD"]


__all__ = ["Estimate", "list_price"]
