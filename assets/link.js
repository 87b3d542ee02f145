// A button that copies the page's address: the address holds the whole view.
export default function (component) {
  const { parentElement } = component;
  let root = parentElement.querySelector(".hs-link");
  if (!root) {
    root = document.createElement("div");
    root.className = "hs-link";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy link";
    const said = document.createElement("span");
    said.setAttribute("role", "status");
    button.addEventListener("click", async () => {
      const address = window.location.href;
      try {
        await navigator.clipboard.writeText(address);
        said.textContent = "copied";
      } catch {
        // Browsers give pages without https no clipboard: show the address to copy by hand.
        said.textContent = address;
      }
      setTimeout(() => { if (said.textContent === "copied") said.textContent = ""; }, 2500);
    });
    root.append(button, said);
    parentElement.append(root);
  }
  return () => {};
}
