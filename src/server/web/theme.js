// theme.js — light or dark before the first paint; a classic script, so that it runs before the page shows.
(() => {
    const kStorage = "sparkinfer.theme";
    let chosen = null;
    try { chosen = localStorage.getItem(kStorage); } catch { /* follows the system */ }
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;

    const dark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    // Switches to the other theme; back to the system's when that is what was chosen.
    globalThis.switch_theme = () => {
        const next = dark() ? "light" : "dark";
        const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
        if (next === system) delete document.documentElement.dataset.theme;
        else document.documentElement.dataset.theme = next;
        try {
            if (next === system) localStorage.removeItem(kStorage);
            else localStorage.setItem(kStorage, next);
        } catch { /* holds until the page closes */ }
        return next;
    };
    globalThis.theme_is_dark = dark;
})();
