// The loops of the reductions. Included by one file for each instruction set, which defines HCCL_KERNELS as the
// namespace to put them in (equal names would be merged by the linker) and sets the target before; so this
// header includes nothing: what it needs must come first, compiled for the plain target.

namespace npu_sim::hccl {
namespace HCCL_KERNELS {

// Storage types: each operation is done in float32 and its result rounded.
struct Half {
    uint16_t bits;
};
struct Brain {
    uint16_t bits;
};

template <typename To, typename From>
inline To bits_as(From value) {
    To out;
    static_assert(sizeof(out) == sizeof(value));
    __builtin_memcpy(&out, &value, sizeof(out));
    return out;
}

template <typename T>
inline T load(T value) {
    return value;
}
inline float load(Brain value) { return bits_as<float>(static_cast<uint32_t>(value.bits) << 16); }
inline float load(Half value) {
    // Shifted into place the exponent is 112 too small; the product mends that, for subnormal numbers too.
    const uint32_t magnitude = value.bits & 0x7fffu;
    const uint32_t scaled = bits_as<uint32_t>(bits_as<float>(magnitude << 13) * bits_as<float>(0x77800000u));
    const uint32_t special = (magnitude << 13) | 0x7f800000u;
    const uint32_t sign = (value.bits & 0x8000u) << 16;
    return bits_as<float>((magnitude >= 0x7c00u ? special : scaled) | sign);
}

template <typename T>
inline void store(T value, T* to) {
    *to = value;
}
inline void store(float value, Brain* to) {
    const uint32_t bits = bits_as<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;  // to nearest, ties to even
    const uint32_t quiet = (bits >> 16) | 0x40u;
    to->bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}
inline void store(float value, Half* to) {
    const uint32_t bits = bits_as<uint32_t>(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    // Adding 0.5 lines the bits of a subnormal half up with the end of the float32 significand.
    const uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13;
    const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    to->bits = static_cast<uint16_t>((magnitude >= 0x477ff000u ? special : finite) | ((bits >> 16) & 0x8000u));
}

// A value as it is after being stored: a card that adds on the way rounds at every step.
template <typename T, typename Accumulator>
inline Accumulator stored(Accumulator value) {
    if constexpr (__is_same(T, Accumulator)) {
        return value;
    } else {
        T out;
        store(value, &out);
        return load(out);
    }
}

// Signed overflow wraps, as on the card; unsigned arithmetic does that without undefined behaviour.
template <typename T>
struct Wrapping {
    using Type = T;
};
template <>
struct Wrapping<int8_t> {
    using Type = uint8_t;
};
template <>
struct Wrapping<int16_t> {
    using Type = uint16_t;
};
template <>
struct Wrapping<int32_t> {
    using Type = uint32_t;
};
template <>
struct Wrapping<int64_t> {
    using Type = uint64_t;
};

struct Sum {
    template <typename T>
    static T apply(T a, T b) {
        using W = typename Wrapping<T>::Type;
        return static_cast<T>(static_cast<W>(a) + static_cast<W>(b));
    }
};
struct Product {
    template <typename T>
    static T apply(T a, T b) {
        using W = typename Wrapping<T>::Type;
        return static_cast<T>(static_cast<W>(a) * static_cast<W>(b));
    }
};
struct Max {  // a NaN wins
    template <typename T>
    static T apply(T a, T b) {
        return a > b || a != a ? a : b;
    }
};
struct Min {
    template <typename T>
    static T apply(T a, T b) {
        return a < b || a != a ? a : b;
    }
};

template <typename T, typename Op>
void reduce_block(const void* const* sources, uint32_t source_count, size_t first, size_t count, void* block) {
    using Accumulator = decltype(load(T{}));
    constexpr size_t kElements = kBlockBytes / sizeof(T);
    alignas(64) Accumulator folded[kElements];
    const T* __restrict head = static_cast<const T*>(sources[0]) + first;
    for (size_t i = 0; i < count; ++i) folded[i] = load(head[i]);
    for (uint32_t source = 1; source < source_count; ++source) {
        const T* __restrict next = static_cast<const T*>(sources[source]) + first;
        for (size_t i = 0; i < count; ++i)
            folded[i] = stored<T>(Op::apply(folded[i], static_cast<Accumulator>(load(next[i]))));
    }
    T* __restrict out = static_cast<T*>(block);
    for (size_t i = 0; i < count; ++i) store(folded[i], out + i);
}

#if defined(__F16C__)
// The compiler does not find the conversion instructions by itself.
template <typename Op>
void reduce_half_block(const void* const* sources, uint32_t source_count, size_t first, size_t count, void* block) {
    const auto at = [&](uint32_t source, size_t i) {
        const auto* from = static_cast<const Half*>(sources[source]) + first + i;
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    };
    const size_t whole = count / 8 * 8;
    for (size_t i = 0; i < whole; i += 8) {
        __m128i folded = _mm256_cvtps_ph(at(0, i), _MM_FROUND_TO_NEAREST_INT);
        for (uint32_t source = 1; source < source_count; ++source)
            folded = _mm256_cvtps_ph(Op::apply(_mm256_cvtph_ps(folded), at(source, i)), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<Half*>(block) + i), folded);
    }
    using Scalar = typename Op::Scalar;
    reduce_block<Half, Scalar>(sources, source_count, first + whole, count - whole, static_cast<Half*>(block) + whole);
}
struct HalfSum {
    using Scalar = Sum;
    static __m256 apply(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
};
struct HalfProduct {
    using Scalar = Product;
    static __m256 apply(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
};
struct HalfMax {
    using Scalar = Max;
    static __m256 apply(__m256 a, __m256 b) {
        const __m256 keep = _mm256_or_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ), _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
        return _mm256_blendv_ps(b, a, keep);
    }
};
struct HalfMin {
    using Scalar = Min;
    static __m256 apply(__m256 a, __m256 b) {
        const __m256 keep = _mm256_or_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ), _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
        return _mm256_blendv_ps(b, a, keep);
    }
};
#endif

template <typename T>
BlockReducer choose(HcclReduceOp op) {
    switch (op) {
        case HCCL_REDUCE_SUM: return reduce_block<T, Sum>;
        case HCCL_REDUCE_PROD: return reduce_block<T, Product>;
        case HCCL_REDUCE_MAX: return reduce_block<T, Max>;
        case HCCL_REDUCE_MIN: return reduce_block<T, Min>;
        default: return nullptr;
    }
}

#if defined(__F16C__)
template <>
BlockReducer choose<Half>(HcclReduceOp op) {
    switch (op) {
        case HCCL_REDUCE_SUM: return reduce_half_block<HalfSum>;
        case HCCL_REDUCE_PROD: return reduce_half_block<HalfProduct>;
        case HCCL_REDUCE_MAX: return reduce_half_block<HalfMax>;
        case HCCL_REDUCE_MIN: return reduce_half_block<HalfMin>;
        default: return nullptr;
    }
}
#endif

inline BlockReducer reducer(HcclDataType type, HcclReduceOp op) {
    switch (type) {
        case HCCL_DATA_TYPE_INT8: return choose<int8_t>(op);
        case HCCL_DATA_TYPE_INT16: return choose<int16_t>(op);
        case HCCL_DATA_TYPE_INT32: return choose<int32_t>(op);
        case HCCL_DATA_TYPE_INT64: return choose<int64_t>(op);
        case HCCL_DATA_TYPE_FP16: return choose<Half>(op);
        case HCCL_DATA_TYPE_BFP16: return choose<Brain>(op);
        case HCCL_DATA_TYPE_FP32: return choose<float>(op);
        default: return nullptr;
    }
}

}  // namespace HCCL_KERNELS
}  // namespace npu_sim::hccl
