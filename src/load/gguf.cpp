// gguf.cpp — a GGUF model on disk (one file or several pieces) as a Checkpoint.
#include "load/gguf.h"

#include <algorithm>

#include "core/file.h"

namespace sparkinfer {

namespace {

class GgufCheckpoint final : public Checkpoint {
  public:
    explicit GgufCheckpoint(Metadata metadata) : Checkpoint(std::move(metadata)) {}
    Container container() const override { return Container::gguf; }
    bool has_weight(const std::string& module) const override { return matrix_name(module) != nullptr; }
    Result<Weight> weight(const std::string& module) override;

    void add(MappedFile file, GgufContents contents);
    Result<void> finish();

  private:
    const StoredTensor* matrix_name(const std::string& module) const {
        const StoredTensor* t = find(module + ".weight");
        return t ? t : find(module);
    }
    std::vector<MappedFile> maps_;
};

void GgufCheckpoint::add(MappedFile file, GgufContents contents) {
    for (StoredTensor& t : contents.tensors) {
        t.file = int(files_.size());
        tensors_.push_back(std::move(t));
    }
    files_.push_back({file.path(), file.size()});
    maps_.push_back(std::move(file));
}

// Sorts the table and refuses names that occur in two pieces.
Result<void> GgufCheckpoint::finish() {
    std::sort(tensors_.begin(), tensors_.end(),
              [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
    for (size_t i = 1; i < tensors_.size(); i++) {
        const StoredTensor &a = tensors_[i - 1], &b = tensors_[i];
        if (a.name == b.name)
            return bad_input("{}: tensor '{}' occurs in {} and in {}", path(), a.name,
                             files_[size_t(a.file)].path, files_[size_t(b.file)].path);
    }
    used_.assign(tensors_.size(), false);
    return {};
}

Result<Weight> GgufCheckpoint::weight(const std::string& module) {
    const StoredTensor* t = matrix_name(module);
    if (!t) return missing_weight(module, {".scale", ".input_scale"});
    Weight w;
    bool known = false;
#define X(name, text, id) \
    if ((id) >= 0 && t->type == (text)) known = true, w.quant = Quant::name;
    FOREACH_QUANT(X)
#undef X
    if (!known)
        return bad_input("{}: tensor '{}' has type {}, which has no decoder here", path(), t->name, t->type);
    TRY_VOID(set_matrix_shape(*t, 1, &w));
    w.data = t->data;
    mark_used(t->name);
    mark_used(module + ".input_scale");  // of quantised activations; the weight alone is more exact
    const StoredTensor* scale = find(module + ".scale");
    if (!scale) return w;
    TRY(w.scale, owned_floats(*scale, w.experts, &w.scale_count));
    return w;
}

// "base-00001-of-00003.gguf" in parts. `count` is 0 for any other name.
struct PieceName {
    std::string base;
    int number = 0, count = 0;
};

PieceName split_piece_name(const std::string& path) {
    constexpr std::string_view kShape = "-00001-of-00003.gguf";
    PieceName piece;
    if (path.size() <= kShape.size()) return piece;
    const std::string tail = path.substr(path.size() - kShape.size());
    int numbers[2] = {0, 0}, which = 0;
    for (size_t i = 0; i < kShape.size(); i++) {
        if (kShape[i] >= '0' && kShape[i] <= '9') {
            if (tail[i] < '0' || tail[i] > '9') return piece;
            which = i < 8 ? 0 : 1;
            numbers[which] = numbers[which] * 10 + (tail[i] - '0');
        } else if (tail[i] != kShape[i]) {
            return piece;
        }
    }
    piece.base = path.substr(0, path.size() - kShape.size());
    piece.number = numbers[0];
    piece.count = numbers[1];
    return piece;
}

std::string piece_path(const PieceName& name, int number) {
    return fmt::format("{}-{:05}-of-{:05}.gguf", name.base, number, name.count);
}

struct Piece {
    MappedFile file;
    GgufContents contents;
    int64_t split_number = 0, split_count = 1, split_tensors = -1;
};

Result<Piece> open_piece(const std::string& path) {
    TRY(MappedFile file, MappedFile::open(path));
    TRY(GgufContents contents, parse_gguf(file.bytes(), path));
    const Metadata& m = contents.metadata;
    TRY(const int64_t number, m.int_or("split.no", 0, 0, 99998));
    TRY(const int64_t count, m.int_or("split.count", 1, 0, 99999));
    TRY(const int64_t tensors, m.int_or("split.tensors.count", -1, -1, INT32_MAX));
    return Piece{std::move(file), std::move(contents), number, std::max<int64_t>(count, 1), tensors};
}

// Opens the pieces after the first and adds them.
Result<void> add_later_pieces(const std::string& path, const Piece& first, GgufCheckpoint* checkpoint) {
    const PieceName name = split_piece_name(path);
    if (name.count != first.split_count)
        return bad_input("{}: is piece 1 of {}, expected a file name that ends in -00001-of-{:05}.gguf", path,
                         first.split_count, first.split_count);
    for (int number = 2; number <= name.count; number++) {
        const std::string next = piece_path(name, number);
        Result<Piece> opened = open_piece(next);
        if (!opened.ok())
            return Error{opened.error().kind, fmt::format("piece {} of {} of the model: {}", number,
                                                          name.count, opened.error().message)};
        Piece piece = std::move(opened).value();
        if (piece.split_number != number - 1 || piece.split_count != first.split_count)
            return bad_input("{}: says it is piece {} of {}, expected piece {} of {}", next,
                             piece.split_number + 1, piece.split_count, number, name.count);
        checkpoint->add(std::move(piece.file), std::move(piece.contents));
    }
    return {};
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> open_gguf(const std::string& path) {
    TRY(Piece first, open_piece(path));
    const PieceName name = split_piece_name(path);
    if (first.split_number != 0) {
        if (name.count == 0)
            return bad_input("{}: is piece {} of {}; open the first piece", path, first.split_number + 1,
                             first.split_count);
        return bad_input("{}: is piece {} of {}; open the first piece, {}", path, first.split_number + 1,
                         first.split_count, piece_path(name, 1));
    }
    auto checkpoint = std::make_unique<GgufCheckpoint>(std::move(first.contents.metadata));
    checkpoint->add(std::move(first.file), std::move(first.contents));
    if (first.split_count > 1) TRY_VOID(add_later_pieces(path, first, checkpoint.get()));
    TRY_VOID(checkpoint->finish());
    const int64_t found = int64_t(checkpoint->tensors().size());
    if (first.split_tensors >= 0 && found != first.split_tensors)
        return bad_input("{}: the pieces hold {} tensors, expected {} (metadata key 'split.tensors.count')",
                         path, found, first.split_tensors);
    return std::unique_ptr<Checkpoint>(std::move(checkpoint));
}

}  // namespace sparkinfer
