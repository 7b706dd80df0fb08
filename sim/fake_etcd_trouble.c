#include "fake_etcd.h"

void fake_etcd_mend(struct fake_etcd *etcd)
{
    for (size_t i = 0; i < FAKE_ETCD_MEMBERS; i++) {
        fake_etcd_down(etcd, i, false);
        fake_etcd_isolate(etcd, i, false);
    }
}

void fake_etcd_trouble(struct fake_etcd *etcd, struct mu_prng *prng, bool mend_only)
{
    size_t member = mu_prng_below(prng, FAKE_ETCD_MEMBERS);
    uint64_t what = mu_prng_below(prng, 4);

    fake_etcd_mend(etcd);
    if (mend_only) {
        return;
    }
    if (what == 0) {
        fake_etcd_down(etcd, member, true);
    } else if (what == 1) {
        fake_etcd_isolate(etcd, member, true);
    }
    if (mu_prng_below(prng, 4) == 0) {
        fake_etcd_compact(etcd, fake_etcd_revision(etcd));
    }
}
