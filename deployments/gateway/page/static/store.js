// Conversations, kept in this browser alone.

const NAME = "pomona";
let opened = null;

/** Conversations: {id, title, at, leaf}. Messages: {id, conversation, parent, role, text, …}. */
function database() {
  opened ??= new Promise((resolve, reject) => {
    const asked = indexedDB.open(NAME, 1);
    asked.onupgradeneeded = () => {
      const conversations = asked.result.createObjectStore("conversations", { keyPath: "id" });
      conversations.createIndex("at", "at");
      const messages = asked.result.createObjectStore("messages", { keyPath: "id" });
      messages.createIndex("conversation", "conversation");
    };
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
  });
  return opened;
}

function done(asked) {
  return new Promise((resolve, reject) => {
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
  });
}

async function store(name, mode = "readonly") {
  return (await database()).transaction(name, mode).objectStore(name);
}

export async function put(kind, value) {
  await done((await store(kind, "readwrite")).put(value));
}

export async function conversation(id) {
  return done((await store("conversations")).get(id));
}

export async function messagesOf(id) {
  return done((await store("messages")).index("conversation").getAll(id));
}

/** The latest first, `most` of them, older than `before`. */
export async function conversations(most, before = Infinity) {
  const index = (await store("conversations")).index("at");
  const range = before === Infinity ? null : IDBKeyRange.upperBound(before, true);
  return new Promise((resolve, reject) => {
    const found = [];
    const asked = index.openCursor(range, "prev");
    asked.onerror = () => reject(asked.error);
    asked.onsuccess = () => {
      const cursor = asked.result;
      if (!cursor || found.length === most) return resolve(found);
      found.push(cursor.value);
      cursor.continue();
    };
  });
}

export async function remove(id) {
  await done((await store("conversations", "readwrite")).delete(id));
  const keys = await done((await store("messages")).index("conversation").getAllKeys(id));
  const messages = await store("messages", "readwrite");
  await Promise.all(keys.map((one) => done(messages.delete(one))));
}
