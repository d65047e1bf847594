#include "gated_delta_case.h"

#include <algorithm>
#include <cmath>

#include "core/half.h"

namespace sparkinfer::test::gated_delta_case {

Doubles reference(const Sequence& s, Doubles* last) {
    const int n_k = s.shape.key_heads, n_v = s.shape.value_heads;
    const Doubles conv = decoded(s.conv), decay = decoded(s.decay), bias = decoded(s.dt_bias),
                  norm = decoded(s.norm);
    Doubles y, state(size_t(n_v) * kWidth * kWidth, 0.0);
    for (int t = 0; t < s.rows; ++t) {
        Doubles m(size_t(s.channels), 0.0);
        for (int c = 0; c < s.channels; ++c) {
            for (int tap = 0; tap < kTaps; ++tap)
                if (const int r = t - 3 + tap; r >= 0)
                    m[size_t(c)] += conv[size_t(c) * kTaps + size_t(tap)] *
                                    double(s.qkv[size_t(r) * size_t(s.channels) + size_t(c)]);
            m[size_t(c)] = silu64(m[size_t(c)]);
        }
        for (int h = 0; h < 2 * n_k; ++h) {
            double sum = 1e-6;
            for (int i = 0; i < kWidth; ++i)
                sum += m[size_t(h) * kWidth + size_t(i)] * m[size_t(h) * kWidth + size_t(i)];
            const double by = 1.0 / std::sqrt(sum) / (h < n_k ? std::sqrt(double(kWidth)) : 1.0);
            for (int i = 0; i < kWidth; ++i) m[size_t(h) * kWidth + size_t(i)] *= by;
        }
        for (int h = 0; h < n_v; ++h) {
            const int key = s.shape.order == HeadOrder::block ? h / (n_v / n_k) : h % n_k;
            const double *q = &m[size_t(key) * kWidth], *k = q + n_k * kWidth,
                         *v = &m[size_t(2 * n_k + h) * kWidth];
            const size_t at = size_t(t) * size_t(n_v) + size_t(h);
            const double beta = sigmoid64(double(s.beta[at]));
            const double keep =
                std::exp(decay[size_t(h)] * std::log1p(std::exp(double(s.alpha[at]) + bias[size_t(h)])));
            double* S = &state[size_t(h) * kWidth * kWidth];
            Doubles d(kWidth), o(kWidth, 0.0);
            for (int j = 0; j < kWidth; ++j) {
                double read = 0;
                for (int i = 0; i < kWidth; ++i) read += (S[i * kWidth + j] *= keep) * k[i];
                d[size_t(j)] = beta * (v[j] - read);
            }
            double sum = 0;
            for (int j = 0; j < kWidth; ++j) {
                for (int i = 0; i < kWidth; ++i)
                    o[size_t(j)] += (S[i * kWidth + j] += k[i] * d[size_t(j)]) * q[i];
                sum += o[size_t(j)] * o[size_t(j)];
            }
            for (int j = 0; j < kWidth; ++j)
                y.push_back(o[size_t(j)] / std::sqrt(sum / kWidth + double(kEps)) * norm[size_t(j)] *
                            silu64(double(s.z[at * kWidth + size_t(j)])));
        }
    }
    if (last) *last = state;
    return y;
}

void expect_same_state(const std::string& what, const StateValue& got, const StateValue& want) {
    EXPECT_EQ(got.header.position, want.header.position) << what;
    EXPECT_EQ(got.header.logged, want.header.logged) << what;
    expect_same_bits(what + " S", got.s, want.s);
    expect_same_bits(what + " ring", got.ring, want.ring);
    expect_same_bits(what + " log k", got.log_k, want.log_k);
    expect_same_bits(what + " log d", got.log_d, want.log_d);
    expect_same_bits(what + " log g", got.log_g, want.log_g);
}

Floats Rig::run(const std::vector<Part>& parts, int extra) {
    StepImage step;
    Floats qkv, z, beta, alpha;
    for (const Part& p : parts) {
        const int first_row = int(step.rows.size()), first_save = int(step.saves.size());
        step.add_rows(p.slot, p.first, p.count);
        for (int i = 0; i < p.verify; ++i) step.rows[step.rows.size() - size_t(i) - 1].flags |= kRowVerify;
        for (auto [row, state] : p.saves) step.saves.push_back({first_row + row, state});
        step.segments.push_back({p.slot, first_row, p.count, p.state_in, p.state_out, p.accepted, first_save,
                                 int32_t(p.saves.size())});
        const auto append = [&](Floats& to, const Floats& from, int cols) {
            to.insert(to.end(), from.begin() + int64_t(p.first) * cols,
                      from.begin() + int64_t(p.first + p.count) * cols);
        };
        append(qkv, s_.qkv, s_.channels);
        append(z, s_.z, s_.values);
        append(beta, s_.beta, s_.shape.value_heads);
        append(alpha, s_.alpha, s_.shape.value_heads);
    }
    if (edit) edit(step);
    const int rows = int(step.rows.size()) + extra;
    const auto padded = [&](Floats values, int cols) {
        values.resize(size_t(rows) * size_t(cols), NAN);
        return m_.tensor(values, rows, cols);
    };
    GatedDelta op{m_.step(),
                  slots,
                  padded(qkv, s_.channels),
                  padded(z, s_.values),
                  padded(beta, s_.shape.value_heads),
                  padded(alpha, s_.shape.value_heads),
                  s_.conv,
                  s_.decay,
                  s_.dt_bias,
                  s_.norm,
                  layer,
                  s_.shape.order,
                  kEps,
                  m_.tensor(rows, s_.values)};
    m_.run(op, step);
    return m_.read(op.y);
}

Floats Rig::run_rows(int count, int state_out) {
    Floats all;
    for (int first = 0; first < count; first += kMaxVerifyRows) {
        const Floats y =
            run({{first, std::min(count - first, kMaxVerifyRows), first ? state_out : -1, state_out}});
        all.insert(all.end(), y.begin(), y.end());
    }
    return all;
}

StateValue Rig::state(int slot) {
    StateValue v;
    std::vector<std::byte> raw(size_t(at_.bytes));
    m_.read(raw.data(), layer.states + slot * layer.state_bytes, at_.bytes);
    const auto floats = [&](int64_t offset, int64_t count) {
        Floats f(static_cast<size_t>(count));
        if (count) memcpy(f.data(), raw.data() + offset, f.size() * 4);
        return f;
    };
    memcpy(&v.header, raw.data(), sizeof v.header);
    for (int h = 1; h < layer.value_heads; ++h)
        EXPECT_EQ(memcmp(raw.data(), raw.data() + h * int(sizeof v.header), sizeof v.header), 0)
            << "header " << h;
    const int64_t cells = int64_t(layer.value_heads) * kWidth * kWidth;
    if (layer.dtype == DType::f32) v.s = floats(at_.s_at, cells);
    for (int64_t i = 0; layer.dtype == DType::bf16 && i < cells; ++i) {
        uint16_t half;
        memcpy(&half, raw.data() + at_.s_at + 2 * i, 2);
        v.s.push_back(bf16_to_f32(half));
    }
    for (int i = 1 - kTaps; i < v.header.logged; ++i) {
        const int64_t column = (v.header.position + i + at_.columns) % at_.columns;
        const Floats c = floats(at_.ring_at + column * s_.channels * 4, s_.channels);
        v.ring.insert(v.ring.end(), c.begin(), c.end());
    }
    v.log_k = floats(at_.log_k_at, int64_t(v.header.logged) * layer.value_heads * kWidth);
    v.log_d = floats(at_.log_d_at, int64_t(v.header.logged) * layer.value_heads * kWidth);
    v.log_g = floats(at_.log_g_at, int64_t(v.header.logged) * layer.value_heads);
    return v;
}

void Rig::write_s(int slot, const Floats& s) {
    m_.write(layer.states + slot * layer.state_bytes + at_.s_at, s.data(), int64_t(s.size()) * 4);
}

std::vector<std::byte> Rig::raw_states() {
    std::vector<std::byte> raw(size_t(layer.state_bytes * kStates));
    m_.read(raw.data(), base_, int64_t(raw.size()));
    return raw;
}

}  // namespace sparkinfer::test::gated_delta_case
