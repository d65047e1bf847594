// store.js — conversations in the browser: IndexedDB, one record a conversation and one a list entry. Where the
// browser keeps nothing (private windows, blocked storage) they live in memory and `persistent` is false.

const kDatabase = "sparkinfer";
const kBodies = "conversations", kIndex = "index";

const settled = (request) => new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
});

// Of the last request of a change: commits at once, so that the change outlives a page that is left now.
const finished = (request) => {
    request.transaction.commit();
    return settled(request);
};

const entry_of = ({ id, title, created, updated }) => ({ id, title, created, updated });

export class Store {
    static async open() {
        const store = new Store();
        store.memory = new Map();
        store.channel = "BroadcastChannel" in globalThis ? new BroadcastChannel(kDatabase) : null;
        try {
            const request = indexedDB.open(kDatabase, 1);
            request.onupgradeneeded = () => {
                request.result.createObjectStore(kBodies, { keyPath: "id" });
                request.result.createObjectStore(kIndex, { keyPath: "id" });
            };
            store.database = await settled(request);
        } catch {
            store.database = null;
        }
        return store;
    }

    get persistent() {
        return this.database !== null;
    }

    // Calls `hear(id)` when another tab changed a conversation.
    on_change(hear) {
        if (this.channel) this.channel.onmessage = (event) => hear(event.data);
    }

    // Entries of all conversations, the latest first.
    async list() {
        const entries = this.database ? await settled(this.stores("readonly", kIndex)[0].getAll()) : [...this.memory.values()].map(entry_of);
        return entries.sort((a, b) => b.updated - a.updated);
    }

    async get(id) {
        if (!this.database) return this.memory.get(id) ?? null;
        return (await settled(this.stores("readonly", kBodies)[0].get(id))) ?? null;
    }

    async put(conversation) {
        if (!this.database) { this.memory.set(conversation.id, conversation); return; }
        const [bodies, index] = this.stores("readwrite", kBodies, kIndex);
        bodies.put(conversation);
        await finished(index.put(entry_of(conversation)));
        this.channel?.postMessage(conversation.id);
    }

    async remove(id) {
        this.memory.delete(id);
        if (!this.database) return;
        const [bodies, index] = this.stores("readwrite", kBodies, kIndex);
        bodies.delete(id);
        await finished(index.delete(id));
        this.channel?.postMessage(id);
    }

    async clear() {
        this.memory.clear();
        if (!this.database) return;
        const [bodies, index] = this.stores("readwrite", kBodies, kIndex);
        bodies.clear();
        await finished(index.clear());
        this.channel?.postMessage("");
    }

    async all() {
        return this.database ? settled(this.stores("readonly", kBodies)[0].getAll()) : [...this.memory.values()];
    }

    // Ids of conversations that have every word of `query` in title or messages.
    async search(query) {
        const words = query.toLowerCase().split(/\s+/).filter(Boolean);
        const found = new Set();
        const look = (c) => {
            const text = [c.title, ...Object.values(c.nodes).map((n) => n.content)].join("\n").toLowerCase();
            if (words.every((w) => text.includes(w))) found.add(c.id);
        };
        if (!this.database) { [...this.memory.values()].forEach(look); return found; }
        const request = this.stores("readonly", kBodies)[0].openCursor();
        return new Promise((resolve, reject) => {
            request.onerror = () => reject(request.error);
            request.onsuccess = () => {
                const cursor = request.result;
                if (!cursor) return resolve(found);
                look(cursor.value);
                cursor.continue();
            };
        });
    }

    stores(mode, ...names) {
        const transaction = this.database.transaction(names, mode);
        return names.map((name) => transaction.objectStore(name));
    }
}
