"""``rocketstore warm``: compile the kernels before they are needed."""

from __future__ import annotations


def warm() -> int:
    """Compile every kernel into the cache, so that no later start pays for it."""
    from rocketstore.scan import kernels

    if not kernels.is_compiled():
        print("kernels are switched off (ROCKETSTORE_KERNELS=off); nothing to compile")
        return 0
    seconds = kernels.warm()
    print(
        f"kernels ready in {seconds:.1f} s; cache: {kernels.cache_root() or 'none can be written'}"
    )
    return 0
