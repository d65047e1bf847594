// wide256.inl — Wide for AVX2: a register is eight rows.
struct Wide {
    static constexpr int kRows = 8;
    using I = __m256i;
    using F = __m256;

    // 16 bytes from p[0], p[4].
    static INLINE I rows(const std::byte* const* p, int64_t at) {
        return _mm256_inserti128_si256(_mm256_castsi128_si256(bytes_at(p[0] + at)), bytes_at(p[4] + at), 1);
    }
    static INLINE I low32(I a, I b) { return _mm256_unpacklo_epi32(a, b); }
    static INLINE I high32(I a, I b) { return _mm256_unpackhi_epi32(a, b); }
    static INLINE I low64(I a, I b) { return _mm256_unpacklo_epi64(a, b); }
    static INLINE I high64(I a, I b) { return _mm256_unpackhi_epi64(a, b); }
    static INLINE I all(uint32_t v) { return _mm256_set1_epi32(int(v)); }
    static INLINE I and_(I a, I b) { return _mm256_and_si256(a, b); }
    static INLINE I or_(I a, I b) { return _mm256_or_si256(a, b); }
    static INLINE I xor_(I a, I b) { return _mm256_xor_si256(a, b); }
    static INLINE I right(I v, int n) { return _mm256_srli_epi32(v, n); }
    static INLINE I left(I v, int n) { return _mm256_slli_epi32(v, n); }
    static INLINE I right_by(I v, int n) { return _mm256_srl_epi32(v, _mm_cvtsi32_si128(n)); }
    static INLINE I signed_byte(I v, int k) {
        return _mm256_srai_epi32(_mm256_slli_epi32(v, 24 - 8 * k), 24);
    }
    // The low four bits of each lane to bit 4 of its bytes.
    static INLINE I spread(I v) {
        const I apart = _mm256_mullo_epi32(and_(v, all(15)), all(0x00204081));
        return left(and_(apart, all(0x01010101)), 4);
    }
    static INLINE I look_up(I codes, const uint8_t* table) {
        const __m128i t = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), codes);
    }
    static INLINE void store(uint8_t* to, I v) { _mm256_store_si256(reinterpret_cast<I*>(to), v); }
    static INLINE void store(float* to, F v) { _mm256_store_ps(to, v); }
    static INLINE F load(const float* from) { return _mm256_load_ps(from); }

    static INLINE F low_half(I v) { return narrow(and_(v, all(0xffff))); }
    static INLINE F high_half(I v) { return narrow(right(v, 16)); }

    static INLINE I larger(I a, I b) { return _mm256_max_epi32(a, b); }
    static INLINE I magnitude_bits(const float* x) {
        return and_(_mm256_loadu_si256(reinterpret_cast<const I*>(x)), all(0x7fffffff));
    }
    static INLINE F load_any(const float* from) { return _mm256_loadu_ps(from); }
    static INLINE void store_any(float* to, F v) { _mm256_storeu_ps(to, v); }
    static INLINE I nearest(F v) { return _mm256_cvtps_epi32(v); }
    static INLINE int32_t largest(I v) {
        v = larger(v, _mm256_permute4x64_epi64(v, 0x4e));
        v = larger(v, _mm256_shuffle_epi32(v, 0x4e));
        return _mm256_cvtsi256_si32(larger(v, _mm256_shuffle_epi32(v, 0xb1)));
    }
    static INLINE void sum_halves(const I code[4], int32_t sum[2]) {
        for (int h = 0; h < 2; ++h) {
            I v = plus(code[2 * h], code[2 * h + 1]);
            v = plus(v, _mm256_permute4x64_epi64(v, 0x4e));
            v = plus(v, _mm256_shuffle_epi32(v, 0x4e));
            sum[h] = _mm256_cvtsi256_si32(plus(v, _mm256_shuffle_epi32(v, 0xb1)));
        }
    }
    // 32 integers as IntegerGroup has them here.
    static INLINE void arrange(const I code[4], bool, int8_t* to) {
        for (int i = 0; i < 4; ++i) {  // 0 1 2 3 -> 0 2 1 3 of each four, then to 16 bits
            const I v = _mm256_shuffle_epi32(code[i], 0xd8);
            const I packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(v, v), 0x08);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16 * i), _mm256_castsi256_si128(packed));
        }
    }

    static INLINE I plus(I a, I b) { return _mm256_add_epi32(a, b); }
    static INLINE I minus(I a, I b) { return _mm256_sub_epi32(a, b); }
    static INLINE F as_number(I bits) { return _mm256_castsi256_ps(bits); }
    static INLINE F number_all(float x) { return _mm256_set1_ps(x); }
    static INLINE F number(I v) { return _mm256_cvtepi32_ps(v); }
    static INLINE F plus(F a, F b) { return _mm256_add_ps(a, b); }
    static INLINE F times(F a, F b) { return _mm256_mul_ps(a, b); }
    static INLINE F add_product(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
    static INLINE F load_some(const float* from, int rows) { return _mm256_maskload_ps(from, mask(rows)); }
    static INLINE void store_some(float* to, int rows, F v) { _mm256_maskstore_ps(to, mask(rows), v); }

    struct Codes {
        I even, odd;  // bytes 0 and 2, 1 and 3 of every lane, as 16 bits
        INLINE explicit Codes(const uint8_t* p) {
            const I v = _mm256_load_si256(reinterpret_cast<const I*>(p));
            even = _mm256_and_si256(v, _mm256_set1_epi16(255));
            odd = _mm256_srli_epi16(v, 8);
        }
    };
    template <bool kPlanes>
    struct Sums {
        I sum;
        INLINE void zero() { sum = _mm256_setzero_si256(); }
        INLINE void add(const Codes& codes, const int8_t* x, int i) {
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(codes.even, four(x + 8 * i)));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(codes.odd, four(x + 8 * i + 4)));
        }
        INLINE I total() const { return sum; }
    };

  private:
    static INLINE I four(const int8_t* x) {
        int32_t bits;
        memcpy(&bits, x, 4);
        return _mm256_set1_epi32(bits);
    }
    static INLINE F narrow(I v) {  // 16 bits of each lane, as floats
        const I packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(v, v), 0x08);
        return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
    }
    static INLINE I mask(int rows) {
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(rows), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    }
};
