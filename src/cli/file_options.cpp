// file_options.cpp — the flags of `sparkinfer pull` and `sparkinfer models`.
#include "cli/option_binder.h"

namespace sparkinfer {

void bind_pull(Binder b, PullOptions& o) {
    b.optional_word("NAME", "a model that the manifest knows; none: list them", o.name);
    b.text("--from", "SOURCE",
           "where the files lie: http://HOST[:PORT]/PATH, https://… or a folder; nothing is asked without it",
           o.from);
    b.text("--to", "FOLDER", "where they go (default: sparkinfer/models in $XDG_DATA_HOME or ~/.local/share)",
           o.to);
    b.text("--tls-ca", "FILE",
           "for https: believe the authorities whose certificates are in this PEM file, not the system's",
           o.tls_ca);
    b.text("--manifest", "FILE",
           "a JSON file that knows models, instead of the built-in list: {\"models\": [{\"name\", \"files\": "
           "[{\"file\", \"bytes\", \"sha256\"}]}]}",
           o.manifest);
}

void bind_models(Binder b, ModelsOptions& o) {
    b.more_words("FOLDER", "folders to look through (default: that of pull, models/ and the working folder)",
                 o.folders);
    b.flag("--json", "print one JSON object", o.json);
}

}  // namespace sparkinfer
