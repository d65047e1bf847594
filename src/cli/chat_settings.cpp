#include "cli/chat_settings.h"

#include <algorithm>
#include <cctype>

#include "cli/option_values.h"

namespace sparkinfer {

namespace {

constexpr int64_t kMostTokens = INT32_MAX;

struct NumberSetting {
    const char* name;
    std::optional<double> AnswerParams::* member;
    NumberRange range;
};
constexpr NumberSetting kNumbers[] = {
    {"temp", &AnswerParams::temperature, {0, 2}},
    {"top_p", &AnswerParams::top_p, {0, 1, true}},
    {"min_p", &AnswerParams::min_p, {0, 1}},
    {"repeat_penalty", &AnswerParams::repeat_penalty, {0, 10, true}},
    {"presence_penalty", &AnswerParams::presence_penalty, {-2, 2}},
    {"frequency_penalty", &AnswerParams::frequency_penalty, {-2, 2}},
};

struct WholeSetting {
    const char* name;
    std::optional<int64_t> AnswerParams::* member;
    int64_t min, max;
};
constexpr WholeSetting kWholes[] = {
    {"top_k", &AnswerParams::top_k, 0, kMostTokens},
    {"repeat_last_n", &AnswerParams::repeat_last_n, -1, kMostTokens},
    {"max_tokens", &AnswerParams::max_tokens, 1, kMostTokens},
};

constexpr const char* kSeed = "seed";
constexpr const char* kStop = "stop";

template <class T>
std::string shown(const std::optional<T>& value, const char* unset) {
    return value ? fmt::format("{}", *value) : unset;
}

}  // namespace

AnswerParams answer_params(const ChatOptions& options) {
    AnswerParams p;
    const SamplingOptions& s = options.sampling;
    p.temperature = s.temperature;
    p.top_p = s.top_p;
    p.min_p = s.min_p;
    p.top_k = s.top_k;
    p.repeat_penalty = s.repeat_penalty;
    p.presence_penalty = s.presence_penalty;
    p.frequency_penalty = s.frequency_penalty;
    p.repeat_last_n = s.repeat_last_n;
    p.seed = s.seed;
    for (const auto& [id, bias] : s.logit_bias) p.logit_bias.emplace_back(id, bias);
    if (options.max_tokens > 0) p.max_tokens = options.max_tokens;
    p.stop = options.stop;
    return p;
}

std::vector<std::string> setting_names() {
    std::vector<std::string> names;
    for (const NumberSetting& setting : kNumbers) names.emplace_back(setting.name);
    for (const WholeSetting& setting : kWholes) names.emplace_back(setting.name);
    names.emplace_back(kSeed);
    names.emplace_back(kStop);
    return names;
}

std::string settings_text(const AnswerParams& p) {
    std::string text;
    const auto line = [&](const char* name, const std::string& value) {
        text += fmt::format("{:<18} {}\n", name, value);
    };
    for (const NumberSetting& setting : kNumbers) line(setting.name, shown(p.*setting.member, "the model's"));
    for (const WholeSetting& setting : kWholes)
        line(setting.name, shown(p.*setting.member,
                                 setting.member == &AnswerParams::max_tokens ? "no limit" : "the model's"));
    line(kSeed, shown(p.seed, "a new one for each answer"));
    std::string stops;
    for (const std::string& stop : p.stop) stops += (stops.empty() ? "'" : ", '") + stop + "'";
    line(kStop, stops.empty() ? "none" : stops);
    return text;
}

Result<void> change_setting(AnswerParams& p, const std::string& name, const std::string& value) {
    const bool reset = value == "default";
    for (const NumberSetting& setting : kNumbers) {
        if (name != setting.name) continue;
        (p.*setting.member).reset();
        if (!reset) {
            TRY(p.*setting.member, parse_number(name, value, setting.range));
        }
        return {};
    }
    for (const WholeSetting& setting : kWholes) {
        if (name != setting.name) continue;
        (p.*setting.member).reset();
        if (!reset) {
            TRY(p.*setting.member, parse_int(name, value, setting.min, setting.max));
        }
        return {};
    }
    if (name == kSeed) {
        p.seed.reset();
        if (!reset) {
            TRY(p.seed, parse_seed(value));
        }
        return {};
    }
    if (name == kStop) {
        p.stop.clear();
        if (!reset) p.stop.push_back(value);
        return {};
    }
    std::string known;
    for (const std::string& one : setting_names()) known += (known.empty() ? "" : ", ") + one;
    return usage_error("there is no setting '{}', expected one of {}", name, known);
}

Result<Thinking> parse_thinking(const std::string& word) {
    Thinking thinking;
    if (word == "default") return thinking;
    if (word == "on" || word == "off") {
        thinking.enabled = word == "on";
        return thinking;
    }
    if (word == "low" || word == "medium" || word == "high") {
        thinking.enabled = true;
        thinking.effort = word;
        return thinking;
    }
    if (word.empty() || !std::isdigit(uint8_t(word[0])))
        return usage_error(
            "thinking is '{}', expected on, off, low, medium, high, default or a number of tokens", word);
    TRY(const int64_t budget, parse_int("the budget of thinking", word, 1, kMostTokens));
    thinking.enabled = true;
    thinking.budget = int32_t(budget);
    return thinking;
}

std::string thinking_text(const Thinking& thinking) {
    if (thinking.budget) return fmt::format("on, at most {} tokens", *thinking.budget);
    if (!thinking.effort.empty()) return "on, effort " + thinking.effort;
    return !thinking.enabled ? "as the model's template has it" : *thinking.enabled ? "on" : "off";
}

}  // namespace sparkinfer
