// attach.js — text files that are picked, dropped or pasted become blocks of code in the message, where they can be
// seen before they are sent.

const kBytesMax = 1024 * 1024;

// The text of a file as Markdown; throws a sentence when it is none.
async function as_markdown(file) {
    if (file.size > kBytesMax) throw new Error(`“${file.name}” is larger than 1 MiB`);
    let text;
    try {
        text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    } catch {
        text = "\0";
    }
    if (text.includes("\0")) throw new Error(`“${file.name}” is not text`);
    const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
    const fence = "`".repeat(longest + 1);
    const ending = /\.(\w{1,12})$/.exec(file.name)?.[1] ?? "";
    return `${file.name}\n${fence}${ending}\n${text.replace(/\r\n/g, "\n").replace(/\n+$/, "")}\n${fence}\n`;
}

// Calls `take(text)` with what is attached and `complain(sentence)` with what cannot be.
export function bind_attachments({ button, input, area, take, complain }) {
    const take_files = async (files) => {
        for (const file of files) {
            try {
                take(await as_markdown(file));
            } catch (error) {
                complain(`${error.message}.`);
            }
        }
    };
    button.addEventListener("click", () => input.click());
    input.addEventListener("change", async () => { await take_files([...input.files]); input.value = ""; });
    area.addEventListener("paste", (event) => {
        if (!event.clipboardData?.files.length) return;
        event.preventDefault();
        take_files([...event.clipboardData.files]);
    });
    for (const kind of ["dragover", "drop"]) {
        document.addEventListener(kind, (event) => {
            if (!event.dataTransfer?.types.includes("Files")) return;
            event.preventDefault(); // or the browser would leave the page for the file
            if (kind === "drop") take_files([...event.dataTransfer.files]);
        });
    }
}
