// ref_pool.h — numbered things of equal size with reference counts: KV pages, recurrent states.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/check.h"

namespace sparkinfer {

// Hands out the numbers 0 … count-1, lowest of the most recently freed first.
class RefPool {
  public:
    explicit RefPool(int32_t count) : refs_(size_t(count), 0) {
        for (int32_t i = count; i-- > 0;) free_.push_back(i);
    }
    int32_t count() const { return int32_t(refs_.size()); }
    int32_t free() const { return int32_t(free_.size()); }
    int32_t refs(int32_t id) const { return refs_[size_t(id)]; }
    bool shared(int32_t id) const { return refs(id) > 1; }

    // A number with one reference. REQUIRES: free() > 0.
    int32_t take() {
        CHECK(!free_.empty(), "a pool of {} is used up", refs_.size());
        const int32_t id = free_.back();
        free_.pop_back();
        refs_[size_t(id)] = 1;
        return id;
    }
    void share(int32_t id) {
        CHECK(refs_[size_t(id)] > 0, "sharing {}, which is free", id);
        ++refs_[size_t(id)];
    }
    void release(int32_t id) {
        CHECK(refs_[size_t(id)] > 0, "releasing {}, which is free", id);
        if (--refs_[size_t(id)] == 0) free_.push_back(id);
    }
    // Compares with the references that the owners say they hold; aborts on a difference.
    void check_integrity(const std::vector<int32_t>& held) const {
        CHECK(held.size() == refs_.size(), "{} counts for {} entries", held.size(), refs_.size());
        std::vector<bool> is_free(refs_.size(), false);
        for (int32_t id : free_) {
            CHECK(!is_free[size_t(id)], "{} is free twice", id);
            is_free[size_t(id)] = true;
        }
        for (size_t i = 0; i < refs_.size(); ++i) {
            CHECK(refs_[i] == held[i], "{} has {} references and {} holders", i, refs_[i], held[i]);
            CHECK((refs_[i] == 0) == is_free[i], "{} has {} references and is {}", i, refs_[i],
                  is_free[i] ? "free" : "not free");
        }
    }

  private:
    std::vector<int32_t> refs_;
    std::vector<int32_t> free_;
};

}  // namespace sparkinfer
