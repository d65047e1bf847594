// wide512.inl — Wide for AVX-512 with VNNI: a register is sixteen rows.
struct Wide {
    static constexpr int kRows = 16;
    using I = __m512i;
    using F = __m512;

    // 16 bytes from p[0], p[4], p[8], p[12].
    static INLINE I rows(const std::byte* const* p, int64_t at) {
        I v = _mm512_castsi128_si512(bytes_at(p[0] + at));
        v = _mm512_inserti32x4(v, bytes_at(p[4] + at), 1);
        v = _mm512_inserti32x4(v, bytes_at(p[8] + at), 2);
        return _mm512_inserti32x4(v, bytes_at(p[12] + at), 3);
    }
    static INLINE I low32(I a, I b) { return _mm512_unpacklo_epi32(a, b); }
    static INLINE I high32(I a, I b) { return _mm512_unpackhi_epi32(a, b); }
    static INLINE I low64(I a, I b) { return _mm512_unpacklo_epi64(a, b); }
    static INLINE I high64(I a, I b) { return _mm512_unpackhi_epi64(a, b); }
    static INLINE I all(uint32_t v) { return _mm512_set1_epi32(int(v)); }
    static INLINE I and_(I a, I b) { return _mm512_and_si512(a, b); }
    static INLINE I or_(I a, I b) { return _mm512_or_si512(a, b); }
    static INLINE I xor_(I a, I b) { return _mm512_xor_si512(a, b); }
    static INLINE I right(I v, int n) { return _mm512_srli_epi32(v, unsigned(n)); }
    static INLINE I left(I v, int n) { return _mm512_slli_epi32(v, unsigned(n)); }
    static INLINE I right_by(I v, int n) { return _mm512_srl_epi32(v, _mm_cvtsi32_si128(n)); }
    static INLINE I signed_byte(I v, int k) {
        return _mm512_srai_epi32(_mm512_slli_epi32(v, unsigned(24 - 8 * k)), 24);
    }
    // The low four bits of each lane to bit 4 of its bytes.
    static INLINE I spread(I v) {
        const I table = _mm512_setr_epi32(0, 0x10, 0x1000, 0x1010, 0x100000, 0x100010, 0x101000, 0x101010,
                                          0x10000000, 0x10000010, 0x10001000, 0x10001010, 0x10100000,
                                          0x10100010, 0x10101000, 0x10101010);
        return _mm512_permutexvar_epi32(v, table);
    }
    static INLINE I look_up(I codes, const uint8_t* table) {
        const __m128i t = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
        return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), codes);
    }
    static INLINE void store(uint8_t* to, I v) { _mm512_store_si512(to, v); }
    static INLINE void store(float* to, F v) { _mm512_store_ps(to, v); }
    static INLINE F load(const float* from) { return _mm512_load_ps(from); }

    static INLINE F low_half(I v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)); }
    static INLINE F high_half(I v) { return low_half(right(v, 16)); }

    static INLINE I larger(I a, I b) { return _mm512_max_epi32(a, b); }
    static INLINE I magnitude_bits(const float* x) { return and_(_mm512_loadu_si512(x), all(0x7fffffff)); }
    static INLINE F load_any(const float* from) { return _mm512_loadu_ps(from); }
    static INLINE void store_any(float* to, F v) { _mm512_storeu_ps(to, v); }
    static INLINE I nearest(F v) { return _mm512_cvtps_epi32(v); }
    static INLINE int32_t largest(I v) { return _mm512_reduce_max_epi32(v); }
    static INLINE void sum_halves(const I code[2], int32_t sum[2]) {
        for (int h = 0; h < 2; ++h) sum[h] = _mm512_reduce_add_epi32(code[h]);
    }
    // 32 integers as IntegerGroup has them here.
    static INLINE void arrange(const I code[2], bool planes, int8_t* to) {
        for (int h = 0; h < 2; ++h) {
            const I high = planes ? _mm512_srai_epi32(plus(code[h], all(128)), 8) : code[h];
            auto* at = reinterpret_cast<__m128i*>(to + kRows * h);
            _mm_storeu_si128(at, _mm512_cvtepi32_epi8(high));
            _mm_storeu_si128(at + 2, _mm512_cvtepi32_epi8(minus(code[h], left(high, 8))));
        }
    }

    static INLINE I plus(I a, I b) { return _mm512_add_epi32(a, b); }
    static INLINE I minus(I a, I b) { return _mm512_sub_epi32(a, b); }
    static INLINE F as_number(I bits) { return _mm512_castsi512_ps(bits); }
    static INLINE F number_all(float x) { return _mm512_set1_ps(x); }
    static INLINE F number(I v) { return _mm512_cvtepi32_ps(v); }
    static INLINE F plus(F a, F b) { return _mm512_add_ps(a, b); }
    static INLINE F times(F a, F b) { return _mm512_mul_ps(a, b); }
    static INLINE F add_product(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    static INLINE F load_some(const float* from, int rows) {
        return _mm512_maskz_loadu_ps(__mmask16((1u << rows) - 1), from);
    }
    static INLINE void store_some(float* to, int rows, F v) {
        _mm512_mask_storeu_ps(to, __mmask16((1u << rows) - 1), v);
    }

    struct Codes {
        I v;
        INLINE explicit Codes(const uint8_t* p) : v(_mm512_load_si512(p)) {}
    };
    template <bool kPlanes>
    struct Sums {
        I high, low;
        INLINE void zero() { high = low = _mm512_setzero_si512(); }
        INLINE void add(const Codes& codes, const int8_t* x, int i) {
            high = _mm512_dpbusd_epi32(high, codes.v, four(x + 4 * i));
            if (kPlanes) low = _mm512_dpbusd_epi32(low, codes.v, four(x + kGroup + 4 * i));
        }
        INLINE I total() const { return kPlanes ? _mm512_add_epi32(_mm512_slli_epi32(high, 8), low) : high; }
    };

  private:
    static INLINE I four(const int8_t* x) {
        int32_t bits;
        memcpy(&bits, x, 4);
        return _mm512_set1_epi32(bits);
    }
};
