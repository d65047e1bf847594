// delta_kernels.inl — the sweeps of delta_rule.h, written for registers of Wide::kRows lanes.
//
// Included once for each instruction set, as integer_kernels.inl is.

// N registers of columns of a state from `at` on.
template <int N, bool kUpdate>
INLINE void state_columns(const Sweep& a, int at) {
    Wide::F sum[N], d[N];
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
        sum[i] = Wide::number_all(0);
        if (kUpdate) d[i] = Wide::load_any(a.d + at + i * Wide::kRows);
    }
    const Wide::F scale = Wide::number_all(a.scale);
    float* s = a.s + at;
    for (int row = 0; row < a.width; ++row, s += a.width) {
        const Wide::F k = Wide::number_all(a.k[row]), by = kUpdate ? Wide::number_all(a.q[row]) : k;
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) {
            Wide::F v = Wide::load_any(s + i * Wide::kRows);
            v = kUpdate ? Wide::add_product(k, d[i], v) : Wide::times(v, scale);
            Wide::store_any(s + i * Wide::kRows, v);
            sum[i] = Wide::add_product(v, by, sum[i]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) Wide::store_any(a.out + at + i * Wide::kRows, sum[i]);
}

template <bool kUpdate>
INLINE void all_state_columns(const Sweep& a) {
    constexpr int kMost = 64 / Wide::kRows;
    int at = 0;
    for (; at + 64 <= a.width; at += 64) state_columns<kMost, kUpdate>(a, at);
    for (; at < a.width; at += Wide::kRows) state_columns<1, kUpdate>(a, at);
}

void sweep(const Sweep& a) { a.d ? all_state_columns<true>(a) : all_state_columns<false>(a); }
