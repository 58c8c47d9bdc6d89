"""`validate=True`: lengths and page ids on the device are read and checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from mlagen.errors import InputError
from tests.runtime.calls import PAGED_64, make_spec, make_tensors, offsets

if TYPE_CHECKING:
    from tests.runtime.conftest import LoadFake
    from tests.runtime.fake_driver import FakeDriver

    Tensors = dict[str, Any]

PLAIN = make_spec()
PAGED = make_spec(k_rope=PAGED_64, sink=True, lse=True)
PADDED = make_spec(mask="padding")
DENSE = make_spec(q_layout="dense", kv={"layout": "dense", "seqlens": True})


class TestValidate:
    """`validate=True` reads what lies on the device."""

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"cu_seqlens_q": [0, 40, 30, 169]}, "cu_seqlens_q: decreases from 40 to 30 at 2"),
            ({"cu_seqlens_q": [1, 40, 40, 169]}, "cu_seqlens_q: starts with 1, not 0"),
            (
                {"cu_seqlens_q": [0, 40, 40, 170]},
                "cu_seqlens_q: ends at 170, but the tensor has 169",
            ),
            (
                {"cu_seqlens_k": [0, 7, 72, 273]},
                "cu_seqlens_k: ends at 273, but the tensor has 272",
            ),
            (
                {"cu_seqlens_k": [0, 7, 7, 270]},
                "block_table: sequence 2 has 263 keys, 5 pages, but",
            ),
            (
                {"max_seqlen_q": 128},
                "cu_seqlens_q: sequence 2 has 129 rows, more than max_seqlen_q=128",
            ),
            ({"max_seqlen_k": 199}, "keys: sequence 2 has 200 rows, more than max_seqlen_k=199"),
        ],
    )
    def test_wrong_lengths(self, load: LoadFake, change: Tensors, message: str) -> None:
        given = {
            name: torch.tensor(value, dtype=torch.int32) if isinstance(value, list) else value
            for name, value in change.items()
        }
        with pytest.raises(InputError) as error:
            load(PAGED).run(make_tensors(PAGED) | given, validate=True)
        assert str(error.value).startswith(message)

    @pytest.mark.parametrize("page", [-1, 7, 2**31 - 1])
    def test_page_outside_the_cache(self, load: LoadFake, page: int) -> None:
        tensors = make_tensors(PAGED)
        tensors["block_table"][1, 1] = page
        with pytest.raises(
            InputError, match=rf"entry \[1, 1\] is page {page}, but the cache has 7"
        ):
            load(PAGED).run(tensors, validate=True)

    def test_wrong_values_of_pages_of_keys(self, load: LoadFake) -> None:
        spec = make_spec(kv=PAGED_64, k_rope=PAGED_64)
        tensors = make_tensors(spec)
        tensors["cache_seqlens"][1] = 257
        with pytest.raises(InputError, match=r"sequence 1 has 257 \+ 0 keys, but .* room for 256"):
            load(spec).run(tensors, validate=True)
        tensors["cache_seqlens"][1] = 129
        with pytest.raises(InputError, match=r"entry \[1, 2\] is page 1073741824"):
            load(spec).run(tensors, validate=True)

    def test_entries_past_the_last_page_hold_anything(
        self, fake: FakeDriver, load: LoadFake
    ) -> None:
        """Case 14: `make_tensors` fills them with 2^30."""
        load(PAGED).run(make_tensors(PAGED), validate=True)
        assert len(fake.launches) == 1

    @pytest.mark.parametrize("count", [-1, 201])
    def test_wrong_key_counts(self, load: LoadFake, count: int) -> None:
        tensors = make_tensors(DENSE)
        tensors["cache_seqlens"][1] = count
        with pytest.raises(InputError, match=rf"cache_seqlens: sequence 1 has {count} \+ 0 keys"):
            load(DENSE).run(tensors, validate=True)

    def test_a_bias_that_ends_early(self, fake: FakeDriver, load: LoadFake) -> None:
        spec = make_spec(score_mod={"kind": "bias", "rank": 3})
        tensors = make_tensors(spec)
        for wrong, message in (
            (tensors["bias"][:, :40], r"bias: sequence 2 has 129 queries, but the tensor 40"),
            (tensors["bias"][..., :64], r"bias: sequence 1 has 65 keys, but the tensor 64"),
        ):
            with pytest.raises(InputError, match=message):
                load(spec).run(tensors | {"bias": wrong}, validate=True)
        load(spec).run(tensors | {"bias": tensors["bias"][:, :1]}, validate=True)
        assert len(fake.launches) == 1

    @pytest.mark.parametrize("valid", [-1, 66])
    def test_wrong_valid_lengths(self, load: LoadFake, valid: int) -> None:
        tensors = make_tensors(PADDED)
        tensors["valid_lengths"][1] = valid
        with pytest.raises(
            InputError, match=rf"valid_lengths: sequence 1 has {valid}, but 65 keys"
        ):
            load(PADDED).run(tensors, validate=True)

    def test_valid_lengths_from_nothing_to_all(self, fake: FakeDriver, load: LoadFake) -> None:
        tensors = make_tensors(PADDED)
        tensors["valid_lengths"].copy_(torch.tensor([0, 65, 1]))
        load(PADDED).run(tensors, validate=True)
        assert len(fake.launches) == 1

    def test_every_call_is_checked(self, fake: FakeDriver, load: LoadFake) -> None:
        kernels, tensors = load(PLAIN), make_tensors(PLAIN)
        kernels.run(tensors, validate=True)
        tensors["cu_seqlens_q"].copy_(offsets((169, 1, 0)))
        with pytest.raises(InputError, match="ends at 170"):
            kernels.run(tensors, validate=True)
        kernels.run(tensors)
        assert len(fake.launches) == 2
