// text_lru.h — values by the text they were made of, least recently used first out.
#pragma once
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace sparkinfer {

// Safe from any number of threads. What find() gave lives on when it is dropped here.
template <class T>
class TextLru {
  public:
    explicit TextLru(size_t bytes_max) : bytes_max_(bytes_max) {}

    std::shared_ptr<const T> find(std::string_view text) {
        const std::lock_guard lock(mutex_);
        const auto found = by_text_.find(text);
        ++(found == by_text_.end() ? misses_ : hits_);
        if (found == by_text_.end()) return nullptr;
        entries_.splice(entries_.begin(), entries_, found->second);
        return found->second->value;
    }

    // `bytes`: what the value takes, with its text.
    void keep(std::string text, size_t bytes, std::shared_ptr<const T> value) {
        const std::lock_guard lock(mutex_);
        if (bytes > bytes_max_ || by_text_.contains(text)) return;
        bytes_ += bytes;
        entries_.push_front({std::move(text), bytes, std::move(value)});
        by_text_.emplace(entries_.front().text, entries_.begin());
        while (bytes_ > bytes_max_) {
            bytes_ -= entries_.back().bytes;
            by_text_.erase(entries_.back().text);
            entries_.pop_back();
        }
    }

    struct Stats {
        int64_t hits = 0, misses = 0;
        size_t entries = 0, bytes = 0;
    };
    Stats stats() const {
        const std::lock_guard lock(mutex_);
        return {hits_, misses_, entries_.size(), bytes_};
    }

  private:
    struct Entry {
        std::string text;
        size_t bytes;
        std::shared_ptr<const T> value;
    };

    const size_t bytes_max_;
    mutable std::mutex mutex_;
    std::list<Entry> entries_;  // most recently used first
    std::unordered_map<std::string_view, typename std::list<Entry>::iterator> by_text_;
    size_t bytes_ = 0;
    int64_t hits_ = 0, misses_ = 0;
};

}  // namespace sparkinfer
