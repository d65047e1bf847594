#include "attention_case.h"

#include <algorithm>

#include "core/half.h"

namespace sparkinfer::test::attention_case {

void spread_axes(StepImage& step) {
    for (Row& r : step.rows) r.position[1] = r.index * 7 % 50, r.position[2] = r.index * 11 % 31;
}

Inputs random_inputs(const Parameters& p, Random& random, const StepImage& step) {
    const int64_t rows = int64_t(step.rows.size());
    return {step, random.normals(rows * p.q_cols()), random.normals(rows * p.k_cols()),
            random.normals(rows * p.k_cols())};
}

Inputs part_of(const Parameters& p, const Inputs& all, const std::vector<int>& which) {
    Inputs part;
    for (int r : which) {
        part.step.rows.push_back(all.step.rows[size_t(r)]);
        const auto append = [r](Floats& to, const Floats& from, int cols) {
            to.insert(to.end(), from.begin() + int64_t(r) * cols, from.begin() + int64_t(r + 1) * cols);
        };
        append(part.q, all.q, p.q_cols());
        append(part.k, all.k, p.k_cols());
        append(part.v, all.v, p.k_cols());
    }
    return part;
}

Floats run_rows(Machine& m, const Parameters& p, const Cache& c, const Inputs& in, int extra) {
    const int rows = in.rows() + extra;
    const auto padded = [&](Floats values, int cols) {
        values.resize(size_t(rows) * size_t(cols), NAN);
        return m.tensor(values, rows, cols);
    };
    Attention op{};
    op.step = m.step();
    op.slots = c.slots;
    op.q = padded(in.q, p.q_cols());
    op.k = padded(in.k, p.k_cols());
    op.v = padded(in.v, p.k_cols());
    if (p.shape.norms) op.q_norm = p.q_norm, op.k_norm = p.k_norm;
    op.rope = {p.frequency, p.shape.dims, p.shape.pairs, p.shape.magnitude, {}};
    std::copy_n(p.shape.sections, 3, op.rope.sections);
    op.kv = c.kv;
    op.heads = p.shape.heads;
    op.eps = kEps;
    op.scale = p.scale;
    op.gated = p.shape.gated;
    op.y = m.tensor(rows, p.y_cols());
    m.run(op, in.step);
    return m.read(op.y);
}

static Doubles rotated(const Parameters& p, Doubles x, const int32_t* position) {
    const AttentionShape& s = p.shape;
    const Doubles frequency = decoded(p.frequency);
    for (int i = 0; i < s.dims / 2; ++i) {
        const int axis = i % 3 == 1 && i < 3 * s.sections[1]   ? 1
                         : i % 3 == 2 && i < 3 * s.sections[2] ? 2
                                                               : 0;
        const double angle = position[axis] * frequency[size_t(i)];
        const double c = std::cos(angle) * double(s.magnitude), n = std::sin(angle) * double(s.magnitude);
        double& a = x[size_t(s.pairs == RopePairs::halves ? i : 2 * i)];
        double& b = x[size_t(s.pairs == RopePairs::halves ? i + s.dims / 2 : 2 * i + 1)];
        const double a0 = a, b0 = b;
        a = a0 * c - b0 * n;
        b = a0 * n + b0 * c;
    }
    return x;
}

Doubles head(const Parameters& p, const Floats& all, int64_t at, const OwnedWeight* norm,
             const int32_t* position) {
    Floats x = slice(all, at, p.shape.width);
    Doubles n(x.begin(), x.end());
    if (norm && p.shape.norms) n = rms_normed(x, decoded(*norm), p.shape.width, double(kEps));
    return position ? rotated(p, n, position) : n;
}

double stored(const Parameters& p, double x) {
    if (p.shape.kv == DType::e4m3) return double(e4m3_to_f32(f32_to_e4m3(float(x))));
    return p.shape.kv == DType::f32 ? x : double(bf16_to_f32(f32_to_bf16(float(x))));
}

Doubles reference(const Parameters& p, const Inputs& in, int first) {
    const AttentionShape& s = p.shape;
    const int d = s.width, group = s.heads / s.kv_heads, step = s.gated ? 2 * d : d;
    Doubles y(size_t(in.rows() - first) * size_t(p.y_cols()), 0.0);
    for (int t = first; t < in.rows(); ++t)
        for (int h = 0; h < s.heads; ++h) {
            const Row& row = in.step.rows[size_t(t)];
            const int64_t q_at = int64_t(t) * p.q_cols() + int64_t(h) * step;
            const Doubles q = head(p, in.q, q_at, &p.q_norm, row.position);
            std::vector<int> seen;
            Doubles scores;
            for (int u = 0; u < in.rows(); ++u) {
                const Row& other = in.step.rows[size_t(u)];
                if (other.slot != row.slot || other.index > row.index) continue;
                const Doubles k = head(p, in.k, int64_t(u) * p.k_cols() + int64_t(h / group) * d, &p.k_norm,
                                       other.position);
                double score = 0;
                for (int i = 0; i < d; ++i) score += q[size_t(i)] * stored(p, k[size_t(i)]);
                seen.push_back(u);
                scores.push_back(score * double(p.scale));
            }
            const double most = *std::max_element(scores.begin(), scores.end());
            double sum = 0;
            for (double& x : scores) sum += x = std::exp(x - most);
            double* out = &y[size_t(t - first) * size_t(p.y_cols()) + size_t(h) * size_t(d)];
            for (size_t j = 0; j < seen.size(); ++j)
                for (int i = 0; i < d; ++i)
                    out[i] +=
                        scores[j] / sum *
                        stored(p, double(in.v[size_t(int64_t(seen[j]) * p.k_cols() + h / group * d + i)]));
            for (int i = 0; s.gated && i < d; ++i) out[i] *= sigmoid64(double(in.q[size_t(q_at + d + i)]));
        }
    return y;
}

}  // namespace sparkinfer::test::attention_case
