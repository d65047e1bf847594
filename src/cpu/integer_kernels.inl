// integer_kernels.inl — packing and multiplying (integer_products.h), written for registers of kRows rows.
//
// Included once for each instruction set, inside a namespace that has defined Wide, and compiled for that
// set. No lambdas: they would not inherit its instructions.

// to[i][r] = bytes 4i … 4i + 3 from `at` on, of row first + r.
INLINE void transpose(const RowSet& rows, int first, int64_t at, Wide::I to[4]) {
    const std::byte* const* p = rows.row + first;
    const Wide::I a = Wide::rows(p, at), b = Wide::rows(p + 1, at), c = Wide::rows(p + 2, at),
                  d = Wide::rows(p + 3, at);
    const Wide::I ab_low = Wide::low32(a, b), cd_low = Wide::low32(c, d);
    const Wide::I ab_high = Wide::high32(a, b), cd_high = Wide::high32(c, d);
    to[0] = Wide::low64(ab_low, cd_low);
    to[1] = Wide::high64(ab_low, cd_low);
    to[2] = Wide::low64(ab_high, cd_high);
    to[3] = Wide::high64(ab_high, cd_high);
}

// Only the first: bytes `at` … at + 3; 16 are read.
INLINE Wide::I words(const RowSet& rows, int first, int64_t at) {
    const std::byte* const* p = rows.row + first;
    return Wide::low64(Wide::low32(Wide::rows(p, at), Wide::rows(p + 1, at)),
                       Wide::low32(Wide::rows(p + 2, at), Wide::rows(p + 3, at)));
}

INLINE Wide::I low_nibbles(Wide::I v) { return Wide::and_(v, Wide::all(0x0f0f0f0f)); }
INLINE Wide::I high_nibbles(Wide::I v) { return Wide::and_(Wide::right(v, 4), Wide::all(0x0f0f0f0f)); }
// Byte k of every 32-bit lane, as a number.
INLINE Wide::F byte_of(Wide::I v, int k) {
    return Wide::number(Wide::and_(Wide::right(v, 8 * k), Wide::all(255)));
}
INLINE void put_code(PackedGroup& g, int i, int first, Wide::I v) { Wide::store(&g.codes[i][first][0], v); }
INLINE void put_scale(PackedGroup& g, int half, int first, Wide::F scale, Wide::F min) {
    Wide::store(&g.scale[half][first], scale);
    Wide::store(&g.min[half][first], min);
}
INLINE Wide::F fill(float x) { return Wide::number_all(x); }

// Formats with blocks of 32. `kCodes`: where four-bit codes begin; `kHigh`: their fifth bits, or 0.
template <int kBytes, int kCodes, int kHigh>
INLINE void codes_of_32(const RowSet& rows, int first, int64_t at, const CodeTable* table, PackedGroup& g) {
    Wide::I t[4];
    transpose(rows, first, at + kCodes, t);
    Wide::I high{};
    if (kHigh) high = words(rows, first, at + kHigh);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        Wide::I low = low_nibbles(t[i]), up = high_nibbles(t[i]);
        if (kHigh) {
            low = Wide::or_(low, Wide::spread(Wide::right(high, 4 * i)));
            up = Wide::or_(up, Wide::spread(Wide::right(high, 4 * i + 16)));
        }
        if (table) low = Wide::look_up(low, table->value), up = Wide::look_up(up, table->value);
        put_code(g, i, first, low);
        put_code(g, i + 4, first, up);
    }
}

INLINE void codes_of_q8_0(const RowSet& rows, int first, int64_t at, PackedGroup& g) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
        Wide::I t[4];
        transpose(rows, first, at + 2 + 16 * j, t);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) put_code(g, 4 * j + i, first, Wide::xor_(t[i], Wide::all(0x80808080)));
    }
}

// 2^(e - 128), as a product of two powers, since it may be subnormal.   (quant/mxfp4.h)
INLINE Wide::F half_power(Wide::I e) {
    const Wide::I a = Wide::right(e, 1), b = Wide::minus(e, a), bias = Wide::all(63);
    return Wide::times(Wide::as_number(Wide::left(Wide::plus(a, bias), 23)),
                       Wide::as_number(Wide::left(Wide::plus(b, bias), 23)));
}

template <Quant kQuant>
INLINE void pack_32(const RowSet& rows, int first, int64_t at, PackedGroup& g) {
    const Wide::I head = words(rows, first, at);
    if constexpr (kQuant == Quant::q4_1 || kQuant == Quant::q5_1) {
        put_scale(g, 0, first, Wide::low_half(head), Wide::high_half(head));
    } else if constexpr (kQuant == Quant::mxfp4) {
        const Wide::F d = half_power(Wide::and_(head, Wide::all(255)));
        put_scale(g, 0, first, d, Wide::times(d, fill(-kE2m1.offset)));
    } else {
        constexpr float kOffset = kQuant == Quant::q4_0   ? 8
                                  : kQuant == Quant::q5_0 ? 16
                                  : kQuant == Quant::q8_0 ? 128
                                                          : kIq4.offset;
        const Wide::F d = Wide::low_half(head);
        put_scale(g, 0, first, d, Wide::times(d, fill(-kOffset)));
    }
    if constexpr (kQuant == Quant::q4_0) codes_of_32<18, 2, 0>(rows, first, at, nullptr, g);
    if constexpr (kQuant == Quant::q4_1) codes_of_32<20, 4, 0>(rows, first, at, nullptr, g);
    if constexpr (kQuant == Quant::q5_0) codes_of_32<22, 6, 2>(rows, first, at, nullptr, g);
    if constexpr (kQuant == Quant::q5_1) codes_of_32<24, 8, 4>(rows, first, at, nullptr, g);
    if constexpr (kQuant == Quant::iq4_nl) codes_of_32<18, 2, 0>(rows, first, at, &kIq4, g);
    if constexpr (kQuant == Quant::mxfp4) codes_of_32<17, 1, 0>(rows, first, at, &kE2m1, g);
    if constexpr (kQuant == Quant::q8_0) codes_of_q8_0(rows, first, at, g);
}

// The scales of Q4_K and Q5_K for the eight groups of a block.   (quant/k_scales.h)
INLINE void k_scales(const RowSet& rows, int first, int64_t at, PackedGroup* g) {
    Wide::I t[4], scale[2], min[2];
    transpose(rows, first, at, t);
    const Wide::F d = Wide::low_half(t[0]), dmin = Wide::times(Wide::high_half(t[0]), fill(-1));
    const Wide::I six = Wide::all(0x3f3f3f3f), top = Wide::all(0x30303030);
    scale[0] = Wide::and_(t[1], six);
    min[0] = Wide::and_(t[2], six);
    scale[1] = Wide::or_(low_nibbles(t[3]), Wide::and_(Wide::right(t[1], 2), top));
    min[1] = Wide::or_(high_nibbles(t[3]), Wide::and_(Wide::right(t[2], 2), top));
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k)
        put_scale(g[k], 0, first, Wide::times(d, byte_of(scale[k / 4], k % 4)),
                  Wide::times(dmin, byte_of(min[k / 4], k % 4)));
}

template <bool kFive>
INLINE void pack_k(const RowSet& rows, int first, int64_t at, PackedGroup* g) {
    k_scales(rows, first, at, g);
    Wide::I high[8];
    if (kFive) transpose(rows, first, at + 16, high), transpose(rows, first, at + 32, high + 4);
    const Wide::I sixteen = Wide::all(0x10101010);
    for (int p = 0; p < 4; ++p)
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
            Wide::I t[4];
            transpose(rows, first, at + (kFive ? 48 : 16) + 32 * p + 16 * j, t);
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) {
                Wide::I low = low_nibbles(t[i]), up = high_nibbles(t[i]);
                if (kFive) {  // bit k of the byte to bit 4
                    const Wide::I moved = Wide::right_by(high[4 * j + i], 2 * p);
                    low = Wide::or_(low, Wide::and_(Wide::left(moved, 4), sixteen));
                    up = Wide::or_(up, Wide::and_(Wide::left(moved, 3), sixteen));
                }
                put_code(g[2 * p], 4 * j + i, first, low);
                put_code(g[2 * p + 1], 4 * j + i, first, up);
            }
        }
}

INLINE void pack_q6_k(const RowSet& rows, int first, int64_t at, PackedGroup* g) {
    Wide::I scales[4], tail[4];
    transpose(rows, first, at + 192, scales);
    transpose(rows, first, at + 194, tail);  // d is its last two bytes
    const Wide::F d = Wide::high_half(tail[3]);
#pragma GCC unroll 16
    for (int k = 0; k < 16; ++k) {
        const Wide::F scale = Wide::times(d, Wide::number(Wide::signed_byte(scales[k / 4], k % 4)));
        put_scale(g[k / 2], k % 2, first, scale, Wide::times(scale, fill(-32)));
    }
    const Wide::I top = Wide::all(0x30303030);
    for (int half = 0; half < 2; ++half)
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
            Wide::I a[4], b[4], high[4];
            transpose(rows, first, at + 64 * half + 16 * j, a);
            transpose(rows, first, at + 64 * half + 32 + 16 * j, b);
            transpose(rows, first, at + 128 + 32 * half + 16 * j, high);
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) {
                PackedGroup* to = g + 4 * half;
                const int at_i = 4 * j + i;
                put_code(to[0], at_i, first,
                         Wide::or_(low_nibbles(a[i]), Wide::and_(Wide::left(high[i], 4), top)));
                put_code(to[1], at_i, first,
                         Wide::or_(low_nibbles(b[i]), Wide::and_(Wide::left(high[i], 2), top)));
                put_code(to[2], at_i, first, Wide::or_(high_nibbles(a[i]), Wide::and_(high[i], top)));
                put_code(to[3], at_i, first,
                         Wide::or_(high_nibbles(b[i]), Wide::and_(Wide::right(high[i], 2), top)));
            }
        }
}

INLINE void pack_iq4_xs(const RowSet& rows, int first, int64_t at, PackedGroup* g) {
    Wide::I t[4];
    transpose(rows, first, at, t);
    const Wide::F d = Wide::low_half(t[0]);
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
        const Wide::I low = Wide::and_(Wide::right(t[1], 4 * k), Wide::all(15));
        const Wide::I high = Wide::and_(Wide::right(t[0], 16 + 2 * k), Wide::all(3));
        const Wide::F s = Wide::number(Wide::or_(low, Wide::left(high, 4)));
        const Wide::F scale = Wide::times(d, Wide::plus(s, fill(-32)));
        put_scale(g[k], 0, first, scale, Wide::times(scale, fill(-kIq4.offset)));
    }
    for (int k = 0; k < 8; ++k) codes_of_32<0, 8, 0>(rows, first, at + 16 * k, &kIq4, g[k]);
}

// Blocks of kGroups · 32 columns; first_group and groups are multiples of that.
template <Quant kQuant>
INLINE void pack_as(const RowSet& rows, int first_group, int groups, PackedGroup* to) {
    const NextTile next = rows.next;
    constexpr int kGroups = Format<kQuant>::block / kGroup;
    for (int g = 0; g < groups; g += kGroups) {
        const int64_t at = int64_t((first_group + g) / kGroups) * Format<kQuant>::bytes;
        for (int i = 0; i < kGroups; ++i) fetch_ahead(next, g + i, groups);
#pragma GCC unroll 2
        for (int first = 0; first < kTileRows; first += Wide::kRows) {
            if constexpr (kQuant == Quant::q4_k)
                pack_k<false>(rows, first, at, to + g);
            else if constexpr (kQuant == Quant::q5_k)
                pack_k<true>(rows, first, at, to + g);
            else if constexpr (kQuant == Quant::q6_k)
                pack_q6_k(rows, first, at, to + g);
            else if constexpr (kQuant == Quant::iq4_xs)
                pack_iq4_xs(rows, first, at, to + g);
            else
                pack_32<kQuant>(rows, first, at, to[g]);
        }
    }
}

void pack(Quant quant, const RowSet& rows, int first_group, int groups, PackedGroup* to) {
    switch (quant) {
        case Quant::q4_0: return pack_as<Quant::q4_0>(rows, first_group, groups, to);
        case Quant::q4_1: return pack_as<Quant::q4_1>(rows, first_group, groups, to);
        case Quant::q5_0: return pack_as<Quant::q5_0>(rows, first_group, groups, to);
        case Quant::q5_1: return pack_as<Quant::q5_1>(rows, first_group, groups, to);
        case Quant::q8_0: return pack_as<Quant::q8_0>(rows, first_group, groups, to);
        case Quant::q4_k: return pack_as<Quant::q4_k>(rows, first_group, groups, to);
        case Quant::q5_k: return pack_as<Quant::q5_k>(rows, first_group, groups, to);
        case Quant::q6_k: return pack_as<Quant::q6_k>(rows, first_group, groups, to);
        case Quant::iq4_nl: return pack_as<Quant::iq4_nl>(rows, first_group, groups, to);
        case Quant::iq4_xs: return pack_as<Quant::iq4_xs>(rows, first_group, groups, to);
        case Quant::mxfp4: return pack_as<Quant::mxfp4>(rows, first_group, groups, to);
        default: CHECK(false, "{} has no integer form", quant_name(quant));
    }
}

// Adds codes × integers of columns 4 · kFrom … 4 · kTo of C rows, scaled, to y.
template <int C, bool kPlanes, int kFrom, int kTo>
INLINE void add_columns(const PackedGroup& w, const IntegerGroup* const* x, int64_t g, int first, int half,
                        Wide::F* y) {
    Wide::Sums<kPlanes> sums[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) sums[c].zero();
#pragma GCC unroll 8
    for (int i = kFrom; i < kTo; ++i) {
        const Wide::Codes codes(&w.codes[i][first][0]);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) sums[c].add(codes, x[c][g].codes, i);
    }
    const Wide::F scale = Wide::load(&w.scale[half][first]), min = Wide::load(&w.min[half][first]);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
        const IntegerGroup& group = x[c][g];
        y[c] = Wide::add_product(Wide::number(sums[c].total()), Wide::times(scale, fill(group.scale)), y[c]);
        y[c] = Wide::add_product(min, fill(kTo - kFrom == 8 ? group.sum_all : group.sum[half]), y[c]);
    }
}

template <int C, bool kPlanes, bool kHalves>
INLINE void tile_columns(const TileProduct& p, int first, int token) {
    const NextTile next = first == 0 && token == 0 ? p.next : NextTile{};
    const IntegerGroup* x[C];
    for (int c = 0; c < C; ++c) x[c] = p.x[token + c] + p.first_group;
    float* out = p.out + int64_t(token) * p.out_stride + first;
    const int rows = p.rows - first < Wide::kRows ? p.rows - first : Wide::kRows;
    Wide::F y[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c)
        y[c] = p.first_group ? Wide::load_some(out + c * p.out_stride, rows) : fill(0);
    for (int g = 0; g < p.groups; ++g) {
        fetch_ahead(next, g, p.groups);
        if (kHalves) {
            add_columns<C, kPlanes, 0, 4>(p.tile[g], x, g, first, 0, y);
            add_columns<C, kPlanes, 4, 8>(p.tile[g], x, g, first, 1, y);
        } else {
            add_columns<C, kPlanes, 0, 8>(p.tile[g], x, g, first, 0, y);
        }
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) Wide::store_some(out + c * p.out_stride, rows, y[c]);
}

template <bool kPlanes, bool kHalves>
INLINE void all_columns(const TileProduct& p, int first) {
    int t = 0;
    for (; t + 8 <= p.tokens; t += 8) tile_columns<8, kPlanes, kHalves>(p, first, t);
    switch (p.tokens - t) {
        case 7: return tile_columns<7, kPlanes, kHalves>(p, first, t);
        case 6: return tile_columns<6, kPlanes, kHalves>(p, first, t);
        case 5: return tile_columns<5, kPlanes, kHalves>(p, first, t);
        case 4: return tile_columns<4, kPlanes, kHalves>(p, first, t);
        case 3: return tile_columns<3, kPlanes, kHalves>(p, first, t);
        case 2: return tile_columns<2, kPlanes, kHalves>(p, first, t);
        case 1: return tile_columns<1, kPlanes, kHalves>(p, first, t);
        default: return;
    }
}

void multiply(const TileProduct& p) {
    for (int first = 0; first < p.rows; first += Wide::kRows) {
        if (p.planes)
            p.halves ? all_columns<true, true>(p, first) : all_columns<true, false>(p, first);
        else
            p.halves ? all_columns<false, true>(p, first) : all_columns<false, false>(p, first);
    }
}

// 32 values to integers. Magnitudes are compared as bits, where what is not finite is the largest.
INLINE void make_group(const float* x, float limit, IntegerGroup& to) {
    constexpr int kRegisters = kGroup / Wide::kRows;
    Wide::I top = Wide::magnitude_bits(x);
#pragma GCC unroll 4
    for (int i = 1; i < kRegisters; ++i)
        top = Wide::larger(top, Wide::magnitude_bits(x + i * Wide::kRows));
    const float largest = std::bit_cast<float>(Wide::largest(top));
    const bool finite = std::isfinite(largest);
    if (!finite || largest < 1e-30f) {
        to = {};
        if (!finite) to.scale = to.sum[0] = to.sum[1] = to.sum_all = NAN;
        return;
    }
    const Wide::F by = fill(limit / largest);
    Wide::I code[kRegisters];
#pragma GCC unroll 4
    for (int i = 0; i < kRegisters; ++i)
        code[i] = Wide::nearest(Wide::times(Wide::load_any(x + i * Wide::kRows), by));
    int32_t sum[2];
    Wide::sum_halves(code, sum);
    to.scale = largest / limit;
    for (int h = 0; h < 2; ++h) to.sum[h] = to.scale * float(sum[h]);
    to.sum_all = to.scale * float(sum[0] + sum[1]);
    Wide::arrange(code, limit > 127, to.codes);
}

void make_groups(const float* x, int64_t groups, float limit, IntegerGroup* to) {
    for (int64_t g = 0; g < groups; ++g) make_group(x + g * kGroup, limit, to[g]);
}
