// attention_kernels.inl — the products of attention_page.h, written for registers of Wide::kRows lanes.
//
// Included once for each instruction set, as integer_kernels.inl is.

// to[i · 16 + l] = from[l · d + i]   l < 16, i < d
INLINE void turn(const float* from, int d, float* to) {
    int i = 0;
    for (; i + 4 <= d; i += 4)
#pragma GCC unroll 4
        for (int l = 0; l < kKeys; l += 4) {
            __m128 a = _mm_loadu_ps(from + (l + 0) * d + i), b = _mm_loadu_ps(from + (l + 1) * d + i),
                   c = _mm_loadu_ps(from + (l + 2) * d + i), e = _mm_loadu_ps(from + (l + 3) * d + i);
            _MM_TRANSPOSE4_PS(a, b, c, e);
            float* at = to + i * kKeys + l;
            _mm_store_ps(at, a);
            _mm_store_ps(at + kKeys, b);
            _mm_store_ps(at + 2 * kKeys, c);
            _mm_store_ps(at + 3 * kKeys, e);
        }
    for (; i < d; ++i)
        for (int l = 0; l < kKeys; ++l) to[i * kKeys + l] = from[l * d + i];
}

// Wide::kRows keys, turned, from `key` of them on, times C queries from `c` on.
template <int C>
INLINE void score_columns(const PageScores& a, int c, int j, int key) {
    Wide::F sum[C];
#pragma GCC unroll 16
    for (int x = 0; x < C; ++x) sum[x] = Wide::number_all(0);
    const float *q = a.q + c, *k = a.turned + key;
    for (int i = 0; i < a.d; ++i, q += a.columns, k += kKeys) {
        const Wide::F keys = Wide::load(k);
#pragma GCC unroll 16
        for (int x = 0; x < C; ++x) sum[x] = Wide::add_product(Wide::number_all(q[x]), keys, sum[x]);
    }
#pragma GCC unroll 16
    for (int x = 0; x < C; ++x) Wide::store_any(a.scores + (c + x) * a.stride + j + key, sum[x]);
}

void scores(const PageScores& a) {
    for (int j = 0; j < a.count; j += kKeys) {
        turn(a.k + int64_t(j) * a.d, a.d, a.turned);
        for (int key = 0; key < kKeys; key += Wide::kRows) {
            int c = 0;
            for (; c + 12 <= a.columns; c += 12) score_columns<12>(a, c, j, key);
            for (; c + 4 <= a.columns; c += 4) score_columns<4>(a, c, j, key);
            if (c + 3 <= a.columns) score_columns<3>(a, c, j, key), c += 3;
            for (; c < a.columns; ++c) score_columns<1>(a, c, j, key);
        }
    }
}

// N registers of the sums of H queries from `c` on, from column `at` on.
template <int N, int H>
INLINE void sum_columns(const PageSums& a, int c, int at) {
    Wide::F sum[H][N];
    const float* weight[H];
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) {
        weight[h] = a.p[c + h];
#pragma GCC unroll 4
        for (int i = 0; i < N; ++i) sum[h][i] = Wide::number_all(0);
    }
    const float* from = a.v + at;
    for (int j = 0; j < a.rows; ++j, from += a.v_stride) {
        Wide::F v[N];
#pragma GCC unroll 4
        for (int i = 0; i < N; ++i) v[i] = Wide::load_any(from + i * Wide::kRows);
#pragma GCC unroll 4
        for (int h = 0; h < H; ++h) {
            const Wide::F p = Wide::number_all(weight[h][j]);
#pragma GCC unroll 4
            for (int i = 0; i < N; ++i) sum[h][i] = Wide::add_product(p, v[i], sum[h][i]);
        }
    }
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h)
#pragma GCC unroll 4
        for (int i = 0; i < N; ++i) Wide::store_any(a.out[c + h] + at + i * Wide::kRows, sum[h][i]);
}

template <int N>
INLINE void sums_from(const PageSums& a, int at) {
    int c = 0;
    for (; c + 4 <= a.columns; c += 4) sum_columns<N, 4>(a, c, at);
    if (c + 3 <= a.columns) sum_columns<N, 3>(a, c, at), c += 3;
    for (; c < a.columns; ++c) sum_columns<N, 1>(a, c, at);
}

void sums(const PageSums& a) {
    int at = 0;
    constexpr int kMost = Wide::kRows == 16 ? 4 : 2;
    for (; at + kMost * Wide::kRows <= a.width; at += kMost * Wide::kRows) sums_from<kMost>(a, at);
    for (; at + Wide::kRows <= a.width; at += Wide::kRows) sums_from<1>(a, at);
    for (; at < a.width; ++at)
        for (int c = 0; c < a.columns; ++c) {
            float sum = 0;
            for (int j = 0; j < a.rows; ++j) sum = std::fma(a.p[c][j], a.v[j * a.v_stride + at], sum);
            a.out[c][at] = sum;
        }
}
