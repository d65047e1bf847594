// pull.cpp — `sparkinfer pull`: a model's files from a mirror or a folder, checked, and gone on with where an
// earlier try ended.
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>
#include <thread>

#include "cli/commands.h"
#include "cli/http_client.h"
#include "cli/model_store.h"
#include "cli/nearest.h"
#include "cli/part_file.h"
#include "cli/progress.h"
#include "cli/sha256.h"
#include "core/file.h"
#include "core/log.h"

namespace sparkinfer {

namespace {

namespace fs = std::filesystem;

constexpr int kTries = 4;  // in a row that bring no byte
constexpr auto kPatience = std::chrono::seconds(60);
constexpr auto kPause = std::chrono::milliseconds(200);  // longer before each further try

bool is_url(const std::string& from) { return from.find("://") != std::string::npos; }

// A file's name in a URL.
std::string url_word(const std::string& name) {
    std::string word;
    for (const char c : name) {
        const bool plain =
            std::isalnum(uint8_t(c)) || std::string_view("-._~").find(c) != std::string_view::npos;
        word += plain ? std::string(1, c) : fmt::format("%{:02X}", uint8_t(c));
    }
    return word;
}

// One request for what is missing. Errors of the connection are worth another try; what the server says is
// not.
struct Mirror {
    HttpClient client;
    std::string name;  // of the mirror, in errors

    // False: the connection broke, `why` says how.
    Result<bool> fetch(const KnownFile& file, PartFile& part, const std::function<Result<void>()>& heard,
                       std::string& why) {
        ClientRequest request;
        request.path = fmt::format("/{}", url_word(file.file));
        if (part.size() > 0) request.range_from = part.size();
        const std::string where = name + request.path;
        std::optional<Error> wrong;
        bool begun = false;
        auto response = client.send(request, [&](const ClientResponse& r, std::string_view bytes) {
            if (r.status() != 200 && r.status() != 206) return false;
            Result<void> taken = begun ? Result<void>{} : begin(r, file, part, where);
            begun = true;
            if (taken.ok()) taken = part.append(bytes);
            if (taken.ok()) taken = heard();
            if (!taken.ok()) wrong = taken.error();
            return taken.ok();
        });
        if (wrong) return *wrong;
        if (!response.ok() && response.error().kind != ErrorKind::resources) return response.error();
        if (!response.ok()) {
            why = response.error().message;
            return false;
        }
        if (response->status() != 200 && response->status() != 206)
            return bad_input("{}: the server answers with status {}, expected the file", where,
                             response->status());
        return true;
    }

    // An answer begins: with what is missing, or (a server without ranges) with the whole file.
    static Result<void> begin(const ClientResponse& response, const KnownFile& file, PartFile& part,
                              const std::string& where) {
        if (response.status() == 200) return part.restart();
        const std::string expected = fmt::format("bytes {}-{}/{}", part.size(), file.bytes - 1, file.bytes);
        const std::string_view found = response.header("content-range");
        if (found == expected) return {};
        return bad_input("{}: the server sends '{}', expected '{}'", where, found, expected);
    }
};

Result<void> copy_file(const std::string& from, PartFile& part, const std::function<Result<void>()>& heard) {
    TRY(const MappedFile file, MappedFile::open(from));
    constexpr uint64_t kBlock = uint64_t(1) << 20;
    while (part.size() < file.size()) {
        const uint64_t bytes = std::min(kBlock, file.size() - part.size());
        TRY_VOID(part.append({reinterpret_cast<const char*>(file.data()) + part.size(), size_t(bytes)}));
        TRY_VOID(heard());
        if (interrupted()) return {};
    }
    return {};
}

class Puller {
  public:
    // `trust`: whose certificates are believed, where `from` is https.
    Puller(std::string from, std::string to, std::optional<TlsTrust> trust)
        : from_(std::move(from)), to_(std::move(to)), trust_(std::move(trust)) {}

    // False: interrupted.
    Result<bool> file(const KnownFile& file) {
        const std::string path = to_ + "/" + file.file;
        std::error_code trouble;
        if (fs::exists(path, trouble)) return check_present(file, path);
        TRY(PartFile part, PartFile::open(path, file.bytes));
        if (part.size() > 0 && part.size() < file.bytes)
            log_info("{}: goes on behind {} of {} bytes", file.file, part.size(), file.bytes);
        const fs::space_info space = fs::space(to_, trouble);
        if (!trouble && space.available < file.bytes - part.size())
            return out_of_resources("{}: {} bytes are missing and {} are free there", path,
                                    file.bytes - part.size(), uint64_t(space.available));
        ProgressBar bar(STDERR_FILENO, 0.3, "pulling");
        const auto heard = [&]() -> Result<void> {
            bar.show(int64_t(part.size()), int64_t(file.bytes));
            return {};
        };
        TRY_VOID(bring(file, part, heard));
        bar.erase();
        if (interrupted() && part.size() == 0) return false;
        if (interrupted()) {
            log_info("{} of {} bytes are kept in {}.part; the same command goes on behind them", part.size(),
                     file.bytes, path);
            return false;
        }
        TRY_VOID(part.finish(file.sha256));
        return true;
    }

  private:
    static Result<bool> check_present(const KnownFile& file, const std::string& path) {
        TRY(const std::string found, sha256_of_files({path}, [](uint64_t) { return !interrupted(); }));
        if (interrupted()) return false;
        if (found != file.sha256)
            return bad_input("{}: is another file, with sha256 {}, expected {}; move it away first", path,
                             found, file.sha256);
        log_info("{} is there already", path);
        return true;
    }

    Result<void> bring(const KnownFile& file, PartFile& part, const std::function<Result<void>()>& heard) {
        if (!is_url(from_)) return copy_file(from_ + "/" + file.file, part, heard);
        TRY(Url url, parse_url(from_));
        Mirror mirror{HttpClient(url, {kPatience, interrupted, trust_}), from_};
        for (int silent = 0; part.size() < file.bytes && !interrupted();) {
            const uint64_t before = part.size();
            std::string why;
            TRY(const bool whole, mirror.fetch(file, part, heard, why));
            silent = part.size() > before ? 0 : silent + 1;
            if (whole && part.size() < file.bytes)
                return bad_input("{}/{}: has {} bytes, expected {}", from_, file.file, part.size(),
                                 file.bytes);
            if (silent > 0 && !interrupted()) std::this_thread::sleep_for(silent * kPause);
            if (silent == kTries && !interrupted())
                return out_of_resources("{}{}", why, part.size() > 0 ? kept(file, part) : "");
        }
        return {};
    }

    static std::string kept(const KnownFile& file, const PartFile& part) {
        return fmt::format(" ({} of {} bytes are kept; the same command goes on behind them)", part.size(),
                           file.bytes);
    }

    std::string from_, to_;
    std::optional<TlsTrust> trust_;
};

Result<int> list(const std::vector<KnownModel>& known, Session& session) {
    std::string text;
    for (const KnownModel& model : known) {
        text += model.name + (model.note.empty() ? "" : "  " + model.note) + "\n";
        for (const KnownFile& file : model.files)
            text += fmt::format("  {}  {} bytes  sha256 {}\n", file.file, file.bytes, file.sha256);
    }
    TRY_VOID(session.out.write(text));
    return 0;
}

// What https needs; nothing for another source. Errors: the URL's.
Result<std::optional<TlsTrust>> trust_for(const PullOptions& o) {
    bool tls = false;
    if (is_url(*o.from)) {
        TRY(const Url url, parse_url(*o.from));
        tls = url.tls;
    }
    if (!tls && o.tls_ca) return usage_error("--tls-ca is for https, but --from is '{}'", *o.from);
    if (!tls) return std::optional<TlsTrust>();
    TRY(TlsTrust trust, TlsTrust::open(o.tls_ca));
    return std::optional(std::move(trust));
}

Result<KnownModel> model_named(const std::string& name, const std::vector<KnownModel>& known) {
    std::vector<std::string> names;
    for (const KnownModel& model : known) {
        if (model.name == name) return model;
        names.push_back(model.name);
    }
    const std::string near = nearest_word(name, names);
    return usage_error("pull: the manifest knows no '{}'{}; `sparkinfer pull` lists what it knows", name,
                       near.empty() ? "" : fmt::format(", did you mean '{}'?", near));
}

}  // namespace

Result<int> run_command(const PullOptions& o, Session& session) {
    std::vector<KnownModel> known = built_in_manifest();
    if (o.manifest) {
        TRY(known, read_manifest(*o.manifest));
    }
    if (!o.name) return list(known, session);
    TRY(const KnownModel model, model_named(*o.name, known));
    if (!o.from)
        return usage_error("pull: no --from says where {} lies, expected http(s)://HOST/PATH or a folder",
                           model.files[0].file);
    TRY(std::optional<TlsTrust> trust, trust_for(o));
    const std::string to = o.to.value_or(models_folder());
    if (to.empty())
        return usage_error("pull: there is no home folder to put models into, expected --to FOLDER");
    std::error_code trouble;
    fs::create_directories(to, trouble);
    if (trouble) return bad_input("{}: cannot be created: {}", to, trouble.message());
    const Deferred deferred;
    Puller puller(*o.from, to, std::move(trust));
    for (const KnownFile& file : model.files) {
        TRY(const bool done, puller.file(file));
        if (!done) return kExitInterrupted;
    }
    TRY_VOID(session.out.write(to + "/" + model.files[0].file + "\n"));
    return 0;
}

}  // namespace sparkinfer
