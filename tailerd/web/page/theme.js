// Light, dark or as the system has it; before the first paint, so that nothing flashes.

"use strict";

(() => {
  const KEY = "tailerd-theme";
  const ORDER = ["system", "light", "dark"];
  const root = document.documentElement;

  function chosen() {
    try {
      return localStorage.getItem(KEY) || "system";
    } catch {
      return "system";
    }
  }

  function apply(theme) {
    if (theme === "system") delete root.dataset.theme;
    else root.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) {
      button.textContent = { system: "◐", light: "☀", dark: "☾" }[theme];
      button.title = `Theme: ${theme}`;
      button.setAttribute("aria-label", `Theme: ${theme}`);
    }
  }

  apply(chosen());
  document.addEventListener("DOMContentLoaded", () => {
    apply(chosen());
    document.getElementById("theme").addEventListener("click", () => {
      const next = ORDER[(ORDER.indexOf(chosen()) + 1) % ORDER.length];
      try {
        if (next === "system") localStorage.removeItem(KEY);
        else localStorage.setItem(KEY, next);
      } catch {
        // Kept for this page only.
      }
      apply(next);
    });
  });
})();
